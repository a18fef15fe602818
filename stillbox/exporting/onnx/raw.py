"""What compilers for chips want: the network alone, numbers to decode it, images to calibrate on.

The network has no decoding and no suppression, which these compilers cannot hold or round badly.
`decode.py` is copied beside it and needs numpy alone.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import jax
import numpy as np

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.onnx import decode
from stillbox.exporting.program import ExportProgram, WeightArrays
from stillbox.inputs.resize import resize_image
from stillbox.models.one_stage.detector import OneStageDetector
from stillbox.references import Parameter

if TYPE_CHECKING:
    from stillbox.predicting.backend import Pixels

NETWORK, CONSTANTS, DECODE, CALIBRATION = "network.onnx", "decoding.npz", "decode.py", "calibration"
OUTPUTS = "box_encodings", "class_logits"


def check_raw(model: schema.Model) -> schema.OneStage:
    """Returns the model if `decode.py` can decode its network.

    Raises:
        UserError: it has two stages, or a part that `decode.py` does not know.
    """
    if not isinstance(model, schema.OneStage):
        raise _refusal("kind", model.kind)
    coder, postprocessing = model.box_coder, model.postprocessing
    plain = isinstance(coder, schema.FasterRcnnBoxCoder) and (
        coder.inclusive_edges == "none" and not coder.max_log_ratio
    )
    if not plain and not isinstance(coder, schema.DistributionBoxCoder):
        raise _refusal("box_coder", coder.kind)
    if postprocessing.box_encodings_clip is not None:
        raise _refusal("postprocessing.box_encodings_clip", "limits")
    if postprocessing.calibration is not None:
        raise _refusal("postprocessing.calibration", postprocessing.calibration.kind)
    return model


def _refusal(field: str, value: object) -> UserError:
    fix = f"leave {Parameter('raw')} out: model_raw.onnx holds the decoding"
    return UserError(f"decode.py has no {value}", where=f"model.{field}", fix=fix)


def network_function(
    program: ExportProgram,
) -> Callable[[WeightArrays, jax.Array], tuple[jax.Array, jax.Array]]:
    """Returns images `[B, H, W, 3]` in 0..255 -> encodings `[B, A, S]` and logits `[B, A, C]`."""

    def network(weights: WeightArrays, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        predictions = program.bind(weights)(images, train=False)
        if hasattr(predictions, "quality_logits"):
            raise _refusal("head", "quality of boxes")
        return predictions.box_encodings, predictions.class_logits

    return network


def write_beside(
    program: ExportProgram, folder: Path, images: Sequence["Pixels"]
) -> dict[str, str]:
    """Writes everything but the network; returns what each file is."""
    arrays: dict[str, Any] = constants(program)
    np.savez(folder / CONSTANTS, **arrays)
    shutil.copyfile(decode.__file__, folder / DECODE)
    (folder / CALIBRATION).mkdir()
    for number, image in enumerate(images):
        pixels, _ = resize_image(image, program.description.resizer)
        file = folder / CALIBRATION / f"{number:03}.png"
        cv2.imwrite(str(file), np.rint(pixels).astype(np.uint8)[..., ::-1])
    return {
        CONSTANTS: "anchors and other numbers for decode.py",
        DECODE: "decoding and suppression in numpy",
        CALIBRATION: f"{len(images)} images of the network's size, to calibrate a compiler on",
    }


def constants(program: ExportProgram) -> dict[str, np.ndarray]:
    """Returns the arrays of `decoding.npz`; docs/chips.md describes them."""
    model = check_raw(program.description)
    detector, postprocessing = program.bind(program.weights), model.postprocessing
    assert isinstance(detector, OneStageDetector)
    nms, coder = postprocessing.nms, model.box_coder
    values: dict[str, object] = {
        "anchors": np.asarray(detector.anchors, np.float32),
        "coder": coder.kind,
        "converter": postprocessing.score_converter,
        "logit_scale": np.float32(postprocessing.logit_scale),
        "background": int(model.background_class),
        "class_ids": np.array(program.model.slots().ids, np.int32),
        "score_threshold": np.float32(nms.score_threshold),
        "iou_threshold": np.float32(nms.iou_threshold),
        "max_total": nms.max_total,
    }
    if isinstance(coder, schema.FasterRcnnBoxCoder):
        scales = coder.y_scale, coder.x_scale, coder.height_scale, coder.width_scale
        values["scales"] = np.array(scales, np.float32)
    else:
        assert isinstance(coder, schema.DistributionBoxCoder)
        values["units"] = np.float32(coder.units_in_anchor)
    return {name: np.asarray(value) for name, value in values.items()}
