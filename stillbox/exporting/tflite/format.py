"""TensorFlow Lite (LiteRT): one file of built-in operations for phones, suppression included.

Its four outputs are those of `TFLite_Detection_PostProcess`, and its metadata those that
MediaPipe's ObjectDetector requires.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import jax
import jax.numpy as jnp
import numpy as np

from stillbox.checkpoints.trained import TrainedModel
from stillbox.devices.process import own_processors
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.backend import Run, refusal
from stillbox.exporting.manifest import MAX_PROGRAM_BYTES, Manifest, Written
from stillbox.exporting.program import ExportProgram, WeightArrays
from stillbox.exporting.saved_model.format import refuse_known_bad
from stillbox.exporting.tflite.metadata import (
    LABEL_IDS,
    OUTPUTS,
    Description,
    describe,
    label_ids,
    least_runtime,
    operators,
)
from stillbox.exporting.tflite.quantization import BITS, float_program, quantize, tensor_ranges
from stillbox.exporting.tflite.web import write_page
from stillbox.extras import import_extra
from stillbox.inputs.resize import misfit, resize_image, resized_size
from stillbox.jax_internals import import_jax2tf
from stillbox.lowering import lowering
from stillbox.untrusted import read_untrusted

if TYPE_CHECKING:
    from tensorflow.types.experimental import ConcreteFunction

FILE = "model.tflite"
_UNUSED = "???"
_LEVEL_SCALE = re.compile(r"\.norm_\d+\.scale$")


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes `model.tflite`.

    It takes one image of one size and returns `detection_boxes` `[1, K, 4]`, `detection_classes`
    `[1, K]` (class indices from 0, the lines of `labels.txt` inside the file), `detection_scores`
    `[1, K]` and `num_detections` `[1]`, all float32, boxes normalised.

    Raises:
        UserError: the extra is not installed, images of the given size do not fit the resizer's
            canvas, or TensorFlow Lite does not have an operation of the model.
    """
    size = program.settings.image_size
    if size and (reason := misfit(size, program.description.resizer)):
        raise UserError(f"the image does not fit: {reason}", where="--image-size")
    tf = import_extra("tensorflow", "tf")
    import_extra("ai_edge_litert", "tflite")
    refuse_known_bad(jax.__version__, tf.__version__)
    if program.settings.quantize == "int8" and program.quantization is not None:
        content = _as_trained(program)
    else:
        content = _converted(program)
        if program.settings.quantize == "int8":
            content = quantize(content, [_model_input(program, image) for image in calibration])
    _check_operators(content)
    content = describe(content, program.settings.input, _description(program))
    (folder / FILE).write_bytes(content)
    files = {FILE: "built-in operations only, with labels and metadata for MediaPipe"}
    if program.settings.web:
        files |= write_page(program, class_labels(program.model), folder)
    return Written(
        files=files,
        needs={"LiteRT or TensorFlow Lite": f">={least_runtime(content)}"},
        written_with={"jax": jax.__version__, "tensorflow": tf.__version__},
    )


def _as_trained(program: ExportProgram) -> bytes:
    """Returns a model of integers in the ranges of quantisation-aware training.

    Raises:
        UserError: training has rounded to other than 8 bits.
    """
    quantization = program.quantization
    assert quantization is not None
    for name in ("weight_bits", "activation_bits"):
        if (bits := getattr(quantization, name)) != BITS:
            what = f"training has rounded to {bits} bits, and int8 has {BITS}"
            raise UserError(what, where=f"train.quantization.{name}", fix="export it in float")
    plain, ranges = float_program(program)
    content = _converted(plain)
    # Towers of several maps have batch norms behind one kernel, which stay float.
    whole = isinstance(program.description.parts["head"], schema.ConvolutionalHead)
    parts = ("backbone", "neck", "head") if whole else ("backbone", "neck")
    # Only pixels are measured, on an image that has their whole range.
    pixels = np.zeros((*(program.settings.image_size or program.input_size), 3), np.uint8)
    pixels[::2] = 255
    image = _model_input(plain, pixels)
    return quantize(content, [image], tensor_ranges(content, ranges, parts), whole=whole)


def load(folder: Path, manifest: Manifest) -> Run:
    """Loads the file into LiteRT.

    The outputs have the names of the signature `detection_api`; `detection_classes` are label map
    ids, as in every other format.

    Raises:
        UserError: LiteRT is not installed, or refuses the file.
    """
    import_extra("ai_edge_litert", "tflite")
    from ai_edge_litert.interpreter import Interpreter

    content = read_untrusted(folder / FILE, most=MAX_PROGRAM_BYTES)
    fix = "install a later ai-edge-litert"
    with refusal("LiteRT", folder / FILE, fix, ValueError, RuntimeError):
        interpreter = Interpreter(model_content=content, num_threads=own_processors())
        runner = interpreter.get_signature_runner()
    ids = np.array(label_ids(content, str(folder / FILE)), np.float32)

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        outputs = runner(**{manifest.settings.input: np.asarray(images)})
        indices = np.rint(outputs["detection_classes"]).astype(int)
        if not 0 <= indices.min() <= indices.max() < len(ids):
            what = f"the model found a class that is none of the {len(ids)} of its {LABEL_IDS}"
            raise UserError(what, where=str(folder / FILE), fix="export the model again")
        return {name: outputs[name] for name in OUTPUTS} | {"detection_classes": ids[indices]}

    return run


def _converted(program: ExportProgram) -> bytes:
    """Returns the model as a flatbuffer, its outputs named `output_0` and so on."""
    import tensorflow as tf

    holder = tf.Module()  # without it the converter writes no signature
    holder.serve = _function(program)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([holder.serve], holder)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    try:
        return bytes(converter.convert())
    except Exception as error:  # the converter has no error class
        raise UserError(
            f"TensorFlow Lite cannot hold this model: {_first_line(error)}",
            where="--format tflite",
            fix="resize the images yourself (leave --image-size out), or use --format saved_model",
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if "error" in line.lower()]
    return (lines or [str(error)])[0].strip()


def _function(program: ExportProgram) -> "ConcreteFunction":
    import tensorflow as tf

    from stillbox.exporting.saved_model.pixels import resize_images

    detect = import_jax2tf().convert(
        _detect(program), native_serialization_platforms=("cpu",), with_gradient=False
    )
    resizer, size = program.description.resizer, program.settings.image_size

    def serve(images: tf.Tensor) -> tuple[tf.Tensor, ...]:
        images = tf.cast(images, tf.float32)
        if size is not None:
            images = resize_images(images, resizer, resized_size(size, resizer)).images
        return detect(images)

    shape = 1, *(size or program.input_size), 3
    spec = tf.TensorSpec(shape, program.settings.input_dtype, "images")
    with lowering(portable=True, suppression="unrolled"):
        return tf.function(serve, autograph=False).get_concrete_function(spec)


def _detect(program: ExportProgram) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
    """Returns the network input `[1, H, W, 3]` -> `OUTPUTS`, with the weights as constants."""
    size = program.settings.image_size
    resizer = program.description.resizer
    true_size = program.input_size if size is None else resized_size(size, resizer)

    def detect(images: jax.Array) -> tuple[jax.Array, ...]:
        weights = _with_variable_scales(program.weights, images)
        found, _ = program.detect(weights, images, jnp.asarray([true_size], jnp.int32))
        classes, count = found.classes.astype(jnp.float32), found.count.astype(jnp.float32)
        return found.boxes, classes, found.scores, count

    return detect


def _with_variable_scales(weights: WeightArrays, images: jax.Array) -> WeightArrays:
    """Returns weights whose scales of batch norms by level depend on the image.

    The converter multiplies a constant scale into the kernel before it. It would write a kernel
    that all levels of a pyramid share once for each level's scale.
    """
    zero = jnp.minimum(jnp.abs(images[0, 0, 0, 0]), 0.0)
    params = {
        path: array + zero if _LEVEL_SCALE.search(path) else array
        for path, array in weights["params"].items()
    }
    return {**weights, "params": params}


def class_labels(model: TrainedModel) -> list[str]:
    """Returns the name of every class index, each on one line; `???` for an unused one."""
    names = model.class_names()
    return [" ".join(names.get(one, _UNUSED).splitlines()) for one in model.slots().ids]


def _description(program: ExportProgram) -> Description:
    raw = program.settings.input_type == "raw_image_tensor"
    pixels = program.normalization if raw else schema.PixelNormalization(mean=(0.0,), std=(1.0,))
    return Description(
        name=program.model.source,
        labels=class_labels(program.model),
        label_ids=program.model.slots().ids,
        mean=pixels.mean,
        std=pixels.std,
    )


def _model_input(program: ExportProgram, image: np.ndarray) -> np.ndarray:
    """Returns an image as input of the model, to calibrate on."""
    settings = program.settings
    size = settings.image_size or program.input_size
    if size == program.input_size:
        resized, _ = resize_image(image, program.description.resizer)
    else:
        resized = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
    if settings.input_type == "image_tensor":
        return np.rint(resized).astype(np.uint8)[None]
    if settings.input_type == "raw_image_tensor":
        pixels = program.normalization
        resized = (resized - np.array(pixels.mean)) / np.array(pixels.std)
    return resized.astype(np.float32)[None]


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
