"""From a program of JAX to a flatbuffer of TFLite: resizing, lowering and `litert-converter`.

The converter's interface for StableHLO is private, and was read in version 0.5.0: no other module
imports the package, and `pyproject.toml` admits versions that the tests have seen. Images have one
size: source positions and weights of resizing are constants of the program
(`inputs.interpolation`). No array is as large as the product of both sizes.
"""

import re
from collections.abc import Callable, Sequence
from importlib import metadata

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.program import ExportProgram, WeightArrays
from stillbox.extras import import_extra
from stillbox.image_kind import RGB_8, ImageKind, per_channel
from stillbox.inputs.interpolation import TAPS, Taps
from stillbox.inputs.resize import Size, resized_size
from stillbox.lowering import lowering_for_tflite
from stillbox.references import Parameter

INPUT, SIGNATURE = "images", "serving_default"
"""Of a converted model: its one signature, and the input of that."""
_REFUSED = re.compile(r"failed to legalize operation '([\w.]+)'")


def converter_version() -> str:
    """Returns the installed version."""
    return metadata.version("litert-converter")


def convert(
    function: Callable[[jax.Array], Sequence[jax.Array]], argument: jax.ShapeDtypeStruct, name: str
) -> bytes:
    """Returns a function of one array as a TFLite model, its constants included.

    The outputs of its signature are `output_0` and so on. Tensors are named by the scopes of the
    function.

    Raises:
        UserError: the converter is not installed, or TensorFlow Lite cannot hold the function.
    """
    import_extra("litert_converter", "tflite")
    lowered = jax.jit(function).trace(argument).lower(lowering_platforms=("cpu",))
    outputs = [f"output_{index}" for index in range(len(lowered.out_info))]
    program = lowered.compiler_ir("stablehlo").operation
    # The quantiser identifies layers by names, which are debug information in MLIR.
    text = program.get_asm(large_elements_limit=None, enable_debug_info=True)
    try:
        return _flatbuffer(text, name, outputs)
    except Exception as error:  # the converter has no error class
        problem = f"TensorFlow Lite cannot hold this model: {_reason(error)}"
        fix = f"use another format, such as {Parameter('format', 'onnx')}"
        raise UserError(problem, where=Parameter("format", "tflite"), fix=fix) from error


def _flatbuffer(program: str, name: str, outputs: Sequence[str]) -> bytes:
    """Returns a program in the text form of StableHLO as a flatbuffer."""
    from litert_converter.mlir import ir, passmanager
    from litert_converter.mlir._mlir_libs import converter_api_ext as converter

    context = ir.Context()
    converter.prepare_mlir_context(context)
    with context, ir.Location.unknown():
        module = ir.Module.parse(program)
        converter.set_signature(module.operation, SIGNATURE, [name], outputs)
        passes = passmanager.PassManager()
        converter.run_convert_to_tfl_passes(module, passes, converter.ConvertToTFLConfig())
        return bytes(converter.export_flatbuffer_to_bytes(module.operation))


def _reason(error: Exception) -> str:
    """Returns one line of a message that can quote the program."""
    if refused := _REFUSED.search(str(error)):
        return f"it needs {refused[1]}, which has no built-in operation"
    lines = [line for line in str(error).splitlines() if "error" in line.lower()]
    return (lines or str(error).splitlines() or [type(error).__name__])[0].strip()[:200]


# Pillow's precision.
_WEIGHT_BITS = 22


def resize_images(images: jax.Array, resizer: schema.Resizer, kind: ImageKind = RGB_8) -> jax.Array:
    """Resizes images as `inputs.resize.resize_image` does, and pads them to the network input.

    Args:
        images: `[B, h, w, C]`, uint8 or float32, 0..255, which have no `misfit`.
        kind: of the images of training; 8 bits are whole numbers.

    Returns:
        `[B, H, W, C]` float32 in 0..255.
    """
    size = images.shape[1], images.shape[2]
    new_size = resized_size(size, resizer)
    if resizer.method == "bilinear_antialias" and new_size != size:
        whole = kind.bits == 8
        images = jnp.rint(images).astype(jnp.uint8) if whole else images
        for axis in (2, 1):
            places, shares = antialias_taps(images.shape[axis], new_size[axis - 1])
            if whole:
                images = _antialiased(images, axis, (places, shares))
            else:
                images = _weighted(images, axis, (places, shares.astype(np.float32)))
    elif resizer.method is not None and new_size != size:
        for axis in (1, 2):
            taps = TAPS[resizer.method](size[axis - 1], new_size[axis - 1], resizer.align_corners)
            images = _weighted(images.astype(jnp.float32), axis, taps)
    return _padded(images.astype(jnp.float32), new_size, resizer)


def _weighted(images: jax.Array, axis: int, taps: Taps) -> jax.Array:
    """Returns sums of source positions times weights along an axis, one position at a time."""
    shape = (-1, 1) if axis == 2 else (-1, 1, 1)
    terms = (
        jnp.take(images, index, axis=axis).astype(weight.dtype) * weight.reshape(shape)
        for index, weight in zip(*taps, strict=True)
    )
    return sum(terms, start=jnp.zeros((), taps[1].dtype))


def _antialiased(images: jax.Array, axis: int, taps: Taps) -> jax.Array:
    """Resizes an axis of uint8 images in Pillow's integers, bit for bit."""
    places, shares = taps
    whole = (shares * 2**_WEIGHT_BITS + 0.5).astype(np.int32)
    total = _weighted(images, axis, (places, whole))
    half = 1 << (_WEIGHT_BITS - 1)
    return ((total + half) >> _WEIGHT_BITS).astype(jnp.uint8)


def antialias_taps(size: int, new_size: int) -> Taps:
    """Returns K source pixels of each result, `[K, n]`, and their shares, `[K, n]`.

    A triangle `max(0, 1 - |x + 1/2 - c| / s)` around the centre `c = (i + 1/2) size / n`, with
    `s = max(size / n, 1)`, divided by its sum, as in Pillow.
    """
    scale = size / new_size
    reach = max(scale, 1.0)
    centre = (np.arange(new_size) + 0.5) * scale
    first = np.maximum((centre - reach + 0.5).astype(np.int32), 0)
    index = first + np.arange(2 * int(np.ceil(reach)) + 1)[:, None]
    weights = np.maximum(1.0 - np.abs(index - centre + 0.5) / reach, 0.0) * (index < size)
    return np.minimum(index, size - 1), weights / weights.sum(axis=0)


def _padded(images: jax.Array, size: Size, resizer: schema.Resizer) -> jax.Array:
    """Pads images `[B, *size, C]` at the bottom and right to the network input."""
    rows, columns = (most - side for most, side in zip(resizer.input_size, size, strict=True))
    if not rows and not columns:
        return images
    color = per_channel(resizer.pad_value, images.shape[3])
    padded = jnp.pad(images, ((0, 0), (0, rows), (0, columns), (0, 0)))
    inside = np.pad(np.ones(size, np.bool_), ((0, rows), (0, columns)))[..., None]
    return jnp.where(inside, padded, np.array(color, np.float32))


Function = Callable[[jax.Array], tuple[jax.Array, ...]]
"""A function of images `[1, h, w, C]`."""
_LEVEL_SCALE = re.compile(r"\.norm_\d+\.scale$")


def convert_program(program: ExportProgram, function: Function) -> bytes:
    """Returns a function of images as a flatbuffer, its outputs named `output_0` and so on."""
    size = program.settings.image_size or program.input_size
    shape = 1, *size, program.image_kind.channels
    images = jax.ShapeDtypeStruct(shape, jnp.dtype(program.settings.input_dtype))
    with lowering_for_tflite():
        return convert(function, images, INPUT)


def detect_function(program: ExportProgram) -> Function:
    """Returns images `[1, h, w, C]` -> `OUTPUTS`, with the weights as constants."""
    size = program.settings.image_size
    resizer = program.description.resizer
    true_size = program.input_size if size is None else resized_size(size, resizer)

    def detect(images: jax.Array) -> tuple[jax.Array, ...]:
        pixels = images.astype(jnp.float32)
        if size is not None:
            pixels = resize_images(images, resizer, program.image_kind)
        weights = _with_variable_scales(program.weights, pixels)
        detections, _ = program.detect(weights, pixels, jnp.asarray([true_size], jnp.int32))
        classes, count = (
            detections.classes.astype(jnp.float32),
            detections.count.astype(jnp.float32),
        )
        return detections.boxes, classes, detections.scores, count

    return detect


def _with_variable_scales(weights: WeightArrays, images: jax.Array) -> WeightArrays:
    """Returns weights where the scales of batch norms by level depend on the image.

    The converter multiplies a constant scale into the kernel before it. A kernel that all levels of
    a pyramid share would be written once for each level's scale.
    """
    zero = jnp.minimum(jnp.abs(images[0, 0, 0, 0]), 0.0)
    params = {
        path: array + zero if _LEVEL_SCALE.search(path) else array
        for path, array in weights["params"].items()
    }
    return {**weights, "params": params}
