"""SavedModel: image files or pixels in, detections out, for TensorFlow and TensorFlow Serving.

Preprocessing is operations of TensorFlow; the detector and its post-processing are one program of
StableHLO in an `XlaCallModule` operation, and the weights are variables.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stillbox.errors import UserError
from stillbox.exporting.formats import Run, Written
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.saved_model.pixels import NetworkInput, Tensor, preprocessing
from stillbox.exporting.settings import ENCODED, ExportSettings

FOLDER = "saved_model"
SIGNATURE = "serving_default"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
# The tensors of "Object Detection Models on TPU", which clients of frozen graphs ask for.
_TENSORS = {
    "num_detections": "NumDetections",
    "detection_boxes": "DetectionBoxes",
    "detection_classes": "DetectionClasses",
    "detection_scores": "DetectionScores",
    "image_info": "ImageInfo",
}
# The least TensorFlow that reads StableHLO up to a version, as tried out. TensorFlow 2.19 refuses
# version 10 of the operation `XlaCallModule`, whatever is in it.
_READERS = (((1, 13), "2.20"), ((1, 15), "2.22"))


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes `saved_model/` with the signature `serving_default`.

    Raises:
        UserError: TensorFlow is not installed, cannot read what this jax writes, or there is no
            such platform.
    """
    del calibration  # nothing is quantised
    tf = import_tensorflow()
    refuse_known_bad(jax.__version__, tf.__version__)
    _check_platforms(program.settings.platforms)
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


def load(folder: Path, manifest: Manifest, runtime: str = "") -> Run:
    """Loads the signature into this process.

    Raises:
        UserError: another runtime is asked for, TensorFlow is not installed, or it refuses the
            program.
    """
    if runtime not in ("", "tensorflow"):
        raise UserError(f"{runtime} does not run SavedModels", fix="leave --runtime out")
    tf = import_tensorflow()
    place = model_folder(folder, manifest.settings)
    try:
        loaded = tf.saved_model.load(str(place))
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise UserError(
            f"TensorFlow {tf.__version__} refuses the model: {error}",
            where=str(place),
            fix=f"install tensorflow{manifest.needs.get('tensorflow', '')}, or export again",
        ) from error
    return _runner(loaded, manifest.settings)


def model_folder(folder: Path, settings: ExportSettings) -> Path:
    """Returns where the SavedModel lies in an export, as the programs of both originals have it.

    The exporter of the Object Detection API makes `saved_model/` in its output; that of "Object
    Detection Models on TPU" writes into the export's folder itself.
    """
    return folder / FOLDER if settings.signature == "detection_api" else folder


def refuse_known_bad(jax_version: str, tensorflow_version: str) -> None:
    """Refuses versions that write what they cannot read.

    Raises:
        UserError: TensorFlow would save the model and then not load it.
    """
    if known_bad(jax_version, tensorflow_version):
        raise UserError(
            f"TensorFlow {tensorflow_version} cannot read what jax {jax_version} writes",
            where="--format saved_model",
            fix="pip install 'jax==0.10.0' 'tensorflow==2.21.*', or tensorflow>=2.22",
        )


def known_bad(jax_version: str, tensorflow_version: str) -> bool:
    """Whether TensorFlow cannot load the SavedModels that this jax writes.

    Their `top_k` becomes `vhlo.composite_v2`, which TensorFlow 2.21 does not know.
    """
    return _numbers(jax_version) >= (0, 10, 1) and _numbers(tensorflow_version) < (2, 22)


def import_tensorflow() -> Any:  # noqa: ANN401
    """Returns the package.

    Raises:
        UserError: it is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise UserError("TensorFlow is not installed", fix="pip install 'stillbox[tf]'") from error
    return tf


def _check_platforms(platforms: Sequence[str]) -> None:
    for platform in platforms:
        if platform not in PLATFORMS:
            raise UserError(
                f"there is no platform {platform!r}",
                where="--platforms",
                fix="valid here: " + ", ".join(PLATFORMS),
            )


def _module(program: ExportProgram) -> Any:  # noqa: ANN401
    """Returns a `tf.Module` with the weights as variables and the function `serve`."""
    import tensorflow as tf

    prepare = preprocessing(program)
    detect = _converted(program)
    module = tf.Module()
    module.weights = {
        kind: {path: tf.Variable(array, name=path) for path, array in arrays.items()}
        for kind, arrays in program.weights.items()
    }
    batch = program.settings.batch_size or None

    def serve(**inputs: Tensor) -> dict[str, Tensor]:
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


def _converted(program: ExportProgram) -> Callable[..., dict[str, Tensor]]:
    """Returns `ExportProgram.outputs` as a function of tensors."""
    from jax.experimental import jax2tf

    batch = str(program.settings.batch_size or "b")
    height, width = program.input_size
    shapes = [None, f"({batch}, {height}, {width}, 3)", f"({batch}, 2)", f"({batch}, 2)"]
    return jax2tf.convert(
        program.outputs,
        polymorphic_shapes=shapes,
        polymorphic_constraints=() if program.settings.batch_size else ("b >= 1",),
        native_serialization_platforms=program.settings.platforms,
        with_gradient=False,
    )


def _input_spec(program: ExportProgram) -> Any:  # noqa: ANN401
    import tensorflow as tf

    settings = program.settings
    batch = settings.batch_size or None
    if settings.input_type in ENCODED:
        return tf.TensorSpec((batch,), tf.string, settings.input)
    raw = settings.input_type == "raw_image_tensor"
    size = program.input_size if raw else settings.image_size or (None, None)
    dtype = tf.uint8 if settings.input_type == "image_tensor" else tf.float32
    return tf.TensorSpec((batch, *size, 3), dtype, settings.input)


def _runner(loaded: Any, settings: ExportSettings) -> Run:  # noqa: ANN401
    import tensorflow as tf

    signature = loaded.signatures[SIGNATURE]

    def run(images: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
        outputs = signature(**{settings.input: tf.convert_to_tensor(images)})
        return {name: array.numpy() for name, array in outputs.items()}

    # The variables live as long as the object that was loaded.
    run.loaded = loaded  # type: ignore[attr-defined]
    return run


def _needs(folder: Path) -> str:
    """Returns the least TensorFlow that reads the program, by the version that it names."""
    names = re.findall(rb"StableHLO_v(\d+)\.(\d+)\.\d+", (folder / "saved_model.pb").read_bytes())
    newest = max((int(major), int(minor)) for major, minor in names)
    for most, tensorflow in _READERS:
        if newest <= most:
            return tensorflow
    return f"{_READERS[-1][1]} or later, with StableHLO {newest[0]}.{newest[1]}"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
