"""From the input of a SavedModel to the network input, as nodes of its graph.

These nodes take images of any size; a new size compiles nothing. The program behind them has one
shape. Pillow's triangle filter is as in `inputs.interpolation`.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from stillbox.experiment import schema
from stillbox.exporting.pixels import resized_sizes
from stillbox.exporting.saved_model.graph import DType, Graph, Tensor
from stillbox.exporting.settings import InputType
from stillbox.image_kind import RGB_8, ImageKind, per_channel
from stillbox.inputs.resize import ENLARGE_CANVAS

# Pillow's precision.
_WEIGHT_BITS = 22
_ENCODED_IMAGE = b"image/encoded"
_JPEG = b"\xff\xd8\xff"


class NetworkInput(NamedTuple):
    """The arguments of `ExportProgram.outputs` after the weights."""

    images: Tensor
    """`[B, H, W, C]` float32 in 0..255."""
    true_sizes: Tensor
    """`[B, 2]` int32, height and width of the image proper."""
    original_sizes: Tensor
    """`[B, 2]` int32, height and width before resizing."""


def add_preprocessing(
    value: Tensor, kind: InputType, resizer: schema.Resizer, images: ImageKind = RGB_8
) -> NetworkInput:
    """Writes the nodes from the value of the signature's input to the network input.

    An image larger than the canvas of a resizer that does not shrink fails when the model runs.
    """
    if kind == "raw_image_tensor":
        sizes = _repeated(_sizes(value), value)
        return NetworkInput(value, sizes, sizes)
    if kind in ("image_tensor", "float_image_tensor"):
        resized, true_size, size = _resize_images(value, resizer, images)
        return NetworkInput(resized, _repeated(true_size, value), _repeated(size, value))
    if kind == "tf_example":
        value = _encoded_images(value)

    def decoded(file: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        image = file.graph.op("ExpandDims", decode_image(file, images.channels), 0)
        resized, *sizes = _resize_images(image, resizer, images)
        return resized[0], sizes[0], sizes[1]

    # Each image has its own size.
    function = value.graph.function("prepare", [DType.STRING], decoded)
    shapes = [(*resizer.input_size, images.channels), (2,), (2,)]
    return NetworkInput(*value.graph.map(function, value, shapes))


def _encoded_images(examples: Tensor) -> Tensor:
    """Returns the image files `[B]` of serialised tf.Examples `[B]`."""
    graph = examples.graph
    none, key = graph.constant([]), graph.constant([_ENCODED_IMAGE])
    # An empty default means that there is none.
    return graph.node(
        "ParseExampleV2",
        [examples, none, none, key, none, none],
        [DType.STRING],
        output="dense_values",
        Tdense=[DType.STRING],
        dense_shapes=[()],
        num_sparse=0,
        sparse_types=[],
        ragged_value_types=[],
        ragged_split_types=[],
    )[0]


def decode_image(file: Tensor, channels: int = 3) -> Tensor:
    """Decodes a JPEG, PNG, GIF or BMP file to `[h, w, channels]` uint8; of a GIF the first picture.

    The EXIF orientation is not applied, as in training.
    """

    def jpeg(content: Tensor) -> Tensor:
        # OpenCV and Pillow, which decode in training, use the accurate transform.
        return content.graph.op(
            "DecodeJpeg", content, channels=channels, dct_method="INTEGER_ACCURATE"
        )

    def other(content: Tensor) -> Tensor:
        return content.graph.op("DecodeImage", content, channels=channels, expand_animations=False)

    graph = file.graph
    is_jpeg = graph.op("Equal", graph.op("Substr", file, 0, len(_JPEG)), _JPEG)
    image = graph.choose(is_jpeg, jpeg, other, file)
    return graph.op("EnsureShape", image, shape=(None, None, channels))


def _resize_images(
    images: Tensor, resizer: schema.Resizer, kind: ImageKind
) -> tuple[Tensor, Tensor, Tensor]:
    """Resizes images as `inputs.resize.resize_image` does, and pads them to the network input.

    Args:
        images: `[B, h, w, C]` uint8 or float32 in 0..255.
        kind: of the images of training; 8 bits are whole numbers.

    Returns:
        Images `[B, H, W, C]`, height and width `[2]` of the image proper, and those before.
    """
    size = _sizes(images)
    true_size = resized_sizes(_array_functions(images.graph), size, resizer)
    if resizer.method == "bilinear_antialias":
        images = _antialias(images, true_size, whole=kind.bits == 8)
    elif resizer.method is not None:
        images = _METHODS[resizer.method](images, true_size, resizer.align_corners)
    images = images.cast(DType.FLOAT)
    return _padded(images, true_size, resizer, kind.channels), true_size, size


def _array_functions(graph: Graph) -> SimpleNamespace:
    """Returns the functions of `jax.numpy` that `resized_sizes` calls, for tensors of a graph."""

    def asarray(values: Tensor | ArrayLike, dtype: type[np.generic]) -> Tensor:
        if isinstance(values, Tensor):
            return values.cast(DType.of(np.dtype(dtype)))
        return graph.constant(np.asarray(values, dtype))

    def reduction(kind: str) -> Callable[[Tensor], Tensor]:
        return lambda values: graph.op(kind, values, 0, keep_dims=False)

    return SimpleNamespace(
        asarray=asarray,
        rint=partial(graph.op, "Round"),
        maximum=partial(graph.op, "Maximum"),
        minimum=partial(graph.op, "Minimum"),
        where=partial(graph.op, "SelectV2"),
        max=reduction("Max"),
        min=reduction("Min"),
    )


def _sizes(images: Tensor) -> Tensor:
    return images.graph.op("Shape", images).at(np.array([1, 2]))


def _repeated(pair: Tensor, images: Tensor) -> Tensor:
    """Returns a pair as `[B, 2]`."""
    graph = images.graph
    batch = graph.op("Shape", images).at(np.array([0, 0]))
    return graph.op("BroadcastTo", pair, batch * np.array([1, 0]) + np.array([0, 2]))


def _padded(images: Tensor, true_size: Tensor, resizer: schema.Resizer, channels: int) -> Tensor:
    """Pads images `[B, *true_size, C]` at the bottom and right to the network input."""
    graph = images.graph
    height, width = resizer.input_size
    shape = None, height, width, channels
    if isinstance(resizer, schema.FixedShapeResizer):
        return graph.op("EnsureShape", images, shape=shape)
    canvas = graph.constant(np.array([height, width], np.int32))
    fits = graph.op("All", graph.op("LessEqual", true_size, canvas), 0, keep_dims=False)
    message = f"the image does not fit the canvas {height}x{width}; {ENLARGE_CANVAS}"
    refusal = graph.refuse_unless(fits, message)
    room = graph.op("Sub", canvas, true_size, after=[refusal])
    ends = np.array([[0, 0], [0, 1], [0, 0], [0, 0]]), np.array([[0, 0], [0, 0], [0, 1], [0, 0]])
    padded = graph.op("Pad", images, room[0] * ends[0] + room[1] * ends[1])
    rows, columns = graph.constant(_steps(height, 2)), graph.constant(_steps(width, 1))
    inside = (rows < true_size[0]) & (columns < true_size[1])
    colour = np.array(per_channel(resizer.pad_value, channels), np.float32)
    filled = graph.op("SelectV2", inside, padded, colour)
    return graph.op("EnsureShape", filled, shape=shape)


def _steps(count: int, trailing: int) -> np.ndarray:
    return np.arange(count, dtype=np.int32).reshape(-1, *[1] * trailing)


def _antialias(images: Tensor, sizes: Tensor, *, whole: bool) -> Tensor:
    """Resizes columns, then rows, as Pillow does.

    Args:
        images: `[B, h, w, C]` in 0..255.
        sizes: height and width `[2]` of the result.
        whole: round to whole numbers first, then compute in Pillow's integers, bit for bit.
    """
    if whole and images.dtype is not DType.UINT8:
        images = images.graph.op("Round", images).cast(DType.UINT8)
    for axis in (2, 1):
        images = _resize_axis(images, axis, sizes[axis - 1])
    return images


def _resize_axis(images: Tensor, axis: int, new_size: Tensor) -> Tensor:
    """Resizes axis 1 or 2 of `[B, h, w, C]`, one source pixel of every sum at a time.

    The result has the type of the images, uint8 or float32.
    """
    graph, whole = images.graph, images.dtype is DType.UINT8
    shape = graph.op("Shape", images)
    places, shares = _antialias_shares(shape[axis], new_size)
    weights = shares.cast(DType.FLOAT)
    if whole:
        weights = (shares * 2**_WEIGHT_BITS + 0.5).cast(DType.INT32)
    resized = graph.op("SelectV2", np.arange(4) == axis, new_size, shape)
    first = np.array(1 << (_WEIGHT_BITS - 1), np.int32) if whole else np.array(0, np.float32)
    start_value = graph.op("Fill", resized, graph.constant(first))
    column = np.array([-1, 1] if axis == 2 else [-1, 1, 1])

    def more(step: Tensor, total: Tensor, *state: Tensor) -> Tensor:
        weights = state[-1]
        return step < weights.graph.op("Shape", weights)[0]

    def add(step: Tensor, total: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        images, places, weights = state
        taken = images.at(places.at(step), axis).cast(total.dtype)
        weight = images.graph.op("Reshape", weights.at(step), column)
        return step + 1, total + taken * weight, *state

    start = graph.constant(np.array(0, np.int32)), start_value, images, places, weights
    total = graph.repeat(more, add, start)[1]
    return (total >> _WEIGHT_BITS).cast(DType.UINT8) if whole else total


def _antialias_shares(size: Tensor, new_size: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the K source pixels of each of n sums, and their shares, `[K, n]` each.

    A triangle `max(0, 1 - |x + 1/2 - c| / s)` around the centre `c = (i + 1/2) size / n`, with
    `s = max(size / n, 1)`, divided by its sum.
    """
    graph = size.graph
    scale = size.cast(DType.DOUBLE) / new_size.cast(DType.DOUBLE)
    reach = graph.op("Maximum", scale, graph.constant(np.array(1.0)))
    centre = (graph.op("Range", 0, new_size, 1).cast(DType.DOUBLE) + 0.5) * scale
    first = graph.op("Maximum", (centre - reach + 0.5).cast(DType.INT32), 0)
    count = graph.op("Ceil", reach).cast(DType.INT32) * 2 + 1
    index = graph.op("ExpandDims", graph.op("Range", 0, count, 1), 1) + first
    distance = graph.op("Abs", index.cast(DType.DOUBLE) - centre + 0.5)
    zero = graph.constant(np.array(0.0))
    weights = graph.op("Maximum", graph.constant(np.array(1.0)) - distance / reach, zero)
    weights = graph.op("SelectV2", index < size, weights, zero)
    places = graph.op("Minimum", index, size - 1)
    return places, weights / graph.op("Sum", weights, 0, keep_dims=False)


def _resizing(operator: str, *, centres: bool = False) -> Callable[[Tensor, Tensor, bool], Tensor]:
    """Returns a resizing method of TensorFlow by its operator; `centres` are at half pixels."""

    def resize(images: Tensor, sizes: Tensor, align_corners: bool) -> Tensor:
        graph = images.graph
        if centres:
            return graph.op(operator, images, sizes, half_pixel_centers=True)
        return graph.op(operator, images, sizes, align_corners=align_corners)

    return resize


_METHODS: dict[str, Callable[[Tensor, Tensor, bool], Tensor]] = {
    "bilinear": _resizing("ResizeBilinear"),
    "bilinear_half_pixel": _resizing("ResizeBilinear", centres=True),
    "nearest": _resizing("ResizeNearestNeighbor"),
    "bicubic": _resizing("ResizeBicubic"),
    "area": _resizing("ResizeArea"),
}
