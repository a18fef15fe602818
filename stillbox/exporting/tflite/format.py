"""TensorFlow Lite (LiteRT): one file of built-in operations for phones, suppression included.

Its four outputs are those of `TFLite_Detection_PostProcess`, and its metadata what MediaPipe's
ObjectDetector asks for.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np

from stillbox.boxes.nms import plain_nms
from stillbox.checkpoints.trained import TrainedModel
from stillbox.devices.processors import own_processors
from stillbox.errors import UserError
from stillbox.exporting.formats import Run, Written
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.program import ExportProgram, Weights
from stillbox.exporting.saved_model.format import import_tensorflow, refuse_known_bad
from stillbox.exporting.saved_model.pixels import Tensor, resize_images
from stillbox.exporting.tflite.metadata import (
    OUTPUTS,
    Description,
    describe,
    label_ids,
    least_runtime,
    operators,
)
from stillbox.exporting.tflite.quantize import quantize
from stillbox.inputs.resize import misfit, resize_image, resized_size
from stillbox.models.layers.lowering import plain_lowering
from stillbox.models.one_stage.postprocess import postprocess

FILE = "model.tflite"
_UNUSED = "???"
_LEVEL_SCALE = re.compile(r"\.norm_\d+\.scale$")


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes `model.tflite`.

    It takes one image of one size and returns `detection_boxes` `[1, K, 4]`, `detection_classes`
    `[1, K]` (class indices from 0, the lines of `labels.txt` inside the file), `detection_scores`
    `[1, K]` and `num_detections` `[1]`, all float32, boxes normalised.

    Raises:
        UserError: the extra is not installed, the settings ask for what the format does not have,
            or the model needs an operation that TensorFlow Lite does not have.
    """
    _check(program)
    tf = import_tensorflow()
    _import_litert()
    refuse_known_bad(jax.__version__, tf.__version__)
    content = _converted(program)
    if program.settings.quantize == "int8":
        content = quantize(content, [_fed(program, image) for image in calibration])
    _check_operators(content)
    content = describe(content, program.settings.input, _description(program))
    (folder / FILE).write_bytes(content)
    return Written(
        files={FILE: "built-in operations only, with labels and metadata for MediaPipe"},
        needs={"LiteRT or TensorFlow Lite": f">={least_runtime(content)}"},
        written_with={"jax": jax.__version__, "tensorflow": tf.__version__},
    )


def load(folder: Path, manifest: Manifest, runtime: str = "") -> Run:
    """Loads the file into LiteRT.

    The outputs have the names of the signature `detection_api`; `detection_classes` are label map
    ids, as in every other format.

    Raises:
        UserError: another runtime is asked for, LiteRT is not installed, or it refuses the file.
    """
    if runtime not in ("", "litert"):
        raise UserError(f"{runtime} does not run TensorFlow Lite models", fix="leave --runtime out")
    _import_litert()
    from ai_edge_litert.interpreter import Interpreter

    content = (folder / FILE).read_bytes()
    try:
        interpreter = Interpreter(model_content=content, num_threads=own_processors())
        runner = interpreter.get_signature_runner()
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"the runtime refuses the model: {error}",
            where=str(folder / FILE),
            fix="install a later ai-edge-litert",
        ) from error
    ids = np.array(label_ids(content), np.float32)

    def run(images: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
        outputs = runner(**{manifest.settings.input: np.asarray(images)})
        indices = np.rint(outputs["detection_classes"]).astype(int)
        return {name: outputs[name] for name in OUTPUTS} | {"detection_classes": ids[indices]}

    return run


def _import_litert() -> None:
    try:
        import ai_edge_litert  # noqa: F401
    except ImportError as error:
        raise UserError("LiteRT is not installed", fix="pip install 'stillbox[tflite]'") from error


def _check(program: ExportProgram) -> None:
    """Refuses what other formats can do."""
    settings, resizer = program.settings, program.description.resizer
    if settings.signature != "detection_api":
        raise UserError(
            "a TensorFlow Lite model has the outputs that MediaPipe knows and no others",
            where="--signature",
            fix="use --signature detection_api",
        )
    if settings.batch_size != 1:
        raise UserError(
            "a TensorFlow Lite model takes one image at a time",
            where="--batch-size",
            fix="use --batch-size 1",
        )
    if settings.image_size and (reason := misfit(settings.image_size, resizer)):
        raise UserError(f"the image does not fit: {reason}", where="--image-size")


def _converted(program: ExportProgram) -> bytes:
    """Returns the model as a flatbuffer, its outputs named `output_0` and so on."""
    import tensorflow as tf

    holder = tf.Module()  # without one the converter writes no signature
    holder.serve = _function(program)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([holder.serve], holder)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    try:
        return bytes(converter.convert())
    except Exception as error:  # the converter has no class of its own
        raise UserError(
            f"TensorFlow Lite cannot hold this model: {_first_line(error)}",
            where="--format tflite",
            fix="resize the images yourself (leave --image-size out), or use --format saved_model",
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if "error" in line.lower()]
    return (lines or [str(error)])[0].strip()


def _function(program: ExportProgram) -> Any:  # noqa: ANN401
    """Returns the concrete function of TensorFlow that is converted."""
    import tensorflow as tf
    from jax.experimental import jax2tf

    detect = jax2tf.convert(
        _detect(program), native_serialization_platforms=("cpu",), with_gradient=False
    )
    resizer, size = program.description.resizer, program.settings.image_size

    def serve(images: Tensor) -> Any:  # noqa: ANN401
        images = tf.cast(images, tf.float32)
        if size is not None:
            images = resize_images(images, resizer, resized_size(size, resizer)).images
        return detect(images)

    with plain_lowering(), plain_nms():
        function = tf.function(serve, autograph=False)
        return function.get_concrete_function(_input_spec(program))


def _input_spec(program: ExportProgram) -> Any:  # noqa: ANN401
    import tensorflow as tf

    size = program.settings.image_size or program.input_size
    dtype = tf.uint8 if program.settings.input_type == "image_tensor" else tf.float32
    return tf.TensorSpec((1, *size, 3), dtype, "images")


def _detect(program: ExportProgram) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
    """Returns the network input `[1, H, W, 3]` -> `OUTPUTS`, with the weights as constants."""
    size = program.settings.image_size
    resizer = program.description.resizer
    shown = program.input_size if size is None else resized_size(size, resizer)

    def detect(images: jax.Array) -> tuple[jax.Array, ...]:
        weights = _shared_once(program.weights, images)
        predictions = program.predictions(weights, images)
        true_sizes = jnp.asarray([shown], jnp.int32)
        anchors = program.anchors
        found = postprocess(predictions, anchors, true_sizes, program.description)
        classes, count = found.classes.astype(jnp.float32), found.count.astype(jnp.float32)
        return found.boxes, classes, found.scores, count

    return detect


def _shared_once(weights: Weights, images: jax.Array) -> Weights:
    """Returns weights whose shared kernels the converter keeps shared.

    It multiplies a constant scale of a batch norm into the kernel before it, and where each level
    of a pyramid has a scale of its own, it would write the kernel once for each level. A scale that
    depends on the image is no constant.
    """
    zero = jnp.minimum(jnp.abs(images[0, 0, 0, 0]), 0.0)
    params = {
        path: array + zero if _LEVEL_SCALE.search(path) else array
        for path, array in weights["params"].items()
    }
    return {**weights, "params": params}


def class_labels(model: TrainedModel) -> list[str]:
    """Returns the name of every class index, `???` for one that nothing uses."""
    names = model.class_names()
    return [names.get(one, _UNUSED) for one in model.slots().ids]


def _description(program: ExportProgram) -> Description:
    pixels = program.description.pixels
    raw = program.settings.input_type == "raw_image_tensor"
    return Description(
        name=program.model.source,
        labels=class_labels(program.model),
        label_ids=program.model.slots().ids,
        mean=pixels.mean if raw else (0.0,),
        std=pixels.std if raw else (1.0,),
    )


def _fed(program: ExportProgram, image: np.ndarray) -> np.ndarray:
    """Returns an image as the model takes it, to calibrate on."""
    settings, pixels = program.settings, program.description.pixels
    if settings.image_size in (None, program.input_size):
        fed, _ = resize_image(image, program.description.resizer)
    else:
        assert settings.image_size is not None
        fed = cv2.resize(image, settings.image_size[::-1], interpolation=cv2.INTER_AREA)
    if settings.input_type == "image_tensor":
        return np.rint(fed).astype(np.uint8)[None]
    if settings.input_type == "raw_image_tensor":
        fed = (fed - np.array(pixels.mean)) / np.array(pixels.std)
    return fed.astype(np.float32)[None]


def _check_operators(content: bytes) -> None:
    foreign = {
        name for name in operators(content) if name == "CUSTOM" or name.startswith("STABLEHLO_")
    }
    if foreign:
        raise UserError(
            f"the model needs {', '.join(sorted(foreign))}, which TensorFlow Lite does not have",
            where="--format tflite",
            fix="use another format",
        )
