"""SavedModel: from image files or pixels to detections, for TensorFlow and TensorFlow Serving.

Preprocessing consists of operations of TensorFlow; detector and post-processing are one program of
StableHLO in an `XlaCallModule` operation, and the weights are variables.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from stillbox.errors import UserError
from stillbox.exporting.backend import Run, refusal
from stillbox.exporting.manifest import Manifest, Written
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ENCODED, ExportSettings
from stillbox.extras import import_extra, install_command
from stillbox.jax_internals import import_jax2tf

if TYPE_CHECKING:
    import tensorflow as tf

FOLDER = "saved_model"
SIGNATURE = "serving_default"
# The tensors of "Object Detection Models on TPU", for clients of frozen graphs.
_TENSORS = {
    "num_detections": "NumDetections",
    "detection_boxes": "DetectionBoxes",
    "detection_classes": "DetectionClasses",
    "detection_scores": "DetectionScores",
    "image_info": "ImageInfo",
}
# The least TensorFlow that reads StableHLO up to a version, by experiment. TensorFlow 2.19 refuses
# version 10 of the operation `XlaCallModule`, whatever its content.
_READERS = (((1, 13), "2.20"), ((1, 15), "2.22"))


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes `saved_model/` with the signature `serving_default`.

    Raises:
        UserError: TensorFlow is not installed, or cannot read the StableHLO of this jax.
    """
    del calibration  # nothing is quantised
    tf = import_extra("tensorflow", "tf")
    refuse_known_bad(jax.__version__, tf.__version__)
    module = _module(program)
    place = model_folder(folder, program.settings)
    tf.saved_model.save(module, str(place), signatures={SIGNATURE: module.serve})
    needs = _needs(place)
    name = "saved_model.pb" if place == folder else FOLDER
    return Written(
        files={name: f"SavedModel, tag serve, signature {SIGNATURE}"},
        needs={"tensorflow": f">={needs}"},
        known_bad=(f"tensorflow<{needs}",),
        written_with={"jax": jax.__version__, "tensorflow": tf.__version__},
    )


def load(folder: Path, manifest: Manifest) -> Run:
    """Loads the signature into this process.

    Raises:
        UserError: TensorFlow is not installed, or refuses the program.
    """
    tf = import_extra("tensorflow", "tf")
    place = model_folder(folder, manifest.settings)
    fix = f"install tensorflow{manifest.needs.get('tensorflow', '')}, or export again"
    errors = OSError, ValueError, tf.errors.OpError
    with refusal(f"TensorFlow {tf.__version__}", place, fix, *errors):
        loaded = tf.saved_model.load(str(place))

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        # The variables live as long as `loaded`, which this function keeps.
        outputs = loaded.signatures[SIGNATURE](
            **{manifest.settings.input: tf.convert_to_tensor(images)}
        )
        return {name: array.numpy() for name, array in outputs.items()}

    return run


def model_folder(folder: Path, settings: ExportSettings) -> Path:
    """Returns the folder of the SavedModel in an export.

    As in the originals: `exporter_main_v2.py` writes `saved_model/` in its output folder, and
    `export_saved_model.py` of tpu/models writes into the output folder itself.
    """
    return folder / FOLDER if settings.signature == "detection_api" else folder


def refuse_known_bad(jax_version: str, tensorflow_version: str) -> None:
    """Refuses a pair of versions of which TensorFlow would save the model and not load it.

    Raises:
        UserError: the pair is known bad.
    """
    if known_bad(jax_version, tensorflow_version):
        raise UserError(
            f"TensorFlow {tensorflow_version} cannot read what jax {jax_version} writes",
            where="--format saved_model",
            fix=f"{install_command('tf')}, or use tensorflow>=2.22",
        )


def known_bad(jax_version: str, tensorflow_version: str) -> bool:
    """Whether TensorFlow cannot load the SavedModels that this jax writes.

    Their `top_k` becomes `vhlo.composite_v2`, which TensorFlow 2.21 does not support.
    """
    return _numbers(jax_version) >= (0, 10, 1) and _numbers(tensorflow_version) < (2, 22)


def _module(program: ExportProgram) -> "tf.Module":
    """Returns a `tf.Module` with the weights as variables and the function `serve`."""
    import tensorflow as tf

    from stillbox.exporting.saved_model.pixels import NetworkInput, preprocessing

    prepare = preprocessing(program)
    detect = _converted(program)
    module = tf.Module()
    module.weights = {
        kind: {path: tf.Variable(array, name=path) for path, array in arrays.items()}
        for kind, arrays in program.weights.items()
    }
    batch = program.settings.batch_size or None

    def serve(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        (value,) = inputs.values()
        parts = [tf.ensure_shape(part, (batch, *part.shape[1:])) for part in prepare(value)]
        outputs = detect(module.weights, *NetworkInput(*parts))
        return {
            name: tf.identity(array, name=_TENSORS.get(name)) for name, array in outputs.items()
        }

    spec = _input_spec(program)
    module.serve = tf.function(serve, autograph=False).get_concrete_function(
        **{program.settings.input: spec}
    )
    return module


def _converted(program: ExportProgram) -> "Callable[..., dict[str, tf.Tensor]]":
    batch = str(program.settings.batch_size or "b")
    height, width = program.input_size
    shapes = [None, f"({batch}, {height}, {width}, 3)", f"({batch}, 2)", f"({batch}, 2)"]
    return import_jax2tf().convert(
        program.outputs,
        polymorphic_shapes=shapes,
        polymorphic_constraints=() if program.settings.batch_size else ("b >= 1",),
        native_serialization_platforms=program.settings.platforms,
        with_gradient=False,
    )


def _input_spec(program: ExportProgram) -> "tf.TensorSpec":
    import tensorflow as tf

    settings = program.settings
    batch = settings.batch_size or None
    if settings.input_type in ENCODED:
        return tf.TensorSpec((batch,), tf.string, settings.input)
    size = program.image_size or (None, None)
    return tf.TensorSpec((batch, *size, 3), settings.input_dtype, settings.input)


def _needs(folder: Path) -> str:
    """Returns the least TensorFlow that reads the program, by its version of StableHLO."""
    names = re.findall(rb"StableHLO_v(\d+)\.(\d+)\.\d+", (folder / "saved_model.pb").read_bytes())
    newest = max((int(major), int(minor)) for major, minor in names)
    for most, tensorflow in _READERS:
        if newest <= most:
            return tensorflow
    return f"{_READERS[-1][1]} or later, with StableHLO {newest[0]}.{newest[1]}"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
