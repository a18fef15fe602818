"""From the input of a SavedModel to the network input, in operations of TensorFlow.

These operations take images of any size; a new size compiles nothing. The program behind them has
one shape. Pillow's triangle filter is that of `inputs.interpolation`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import tensorflow as tf
import tensorflow.experimental.numpy as tnp

from stillbox.experiment import schema
from stillbox.exporting.pixels import resized_sizes
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ENCODED
from stillbox.inputs.resize import ENLARGE_CANVAS, Size

# Pillow's precision.
_WEIGHT_BITS = 22


def antialias(images: tf.Tensor, sizes: Size | tf.Tensor, align_corners: bool) -> tf.Tensor:
    """Resizes columns, then rows, in Pillow's integers, bit for bit.

    Args:
        images: `[B, h, w, 3]` in 0..255; rounded to whole numbers first.
        sizes: height and width of the result, integers or a tensor `[2]`.
        align_corners: of other methods, without effect here.
    """
    del align_corners
    if images.dtype != tf.uint8:
        images = tf.cast(tf.round(images), tf.uint8)
    return _resize_axis(_resize_axis(images, 2, sizes[1]), 1, sizes[0])


def _resize_axis(images: tf.Tensor, axis: int, new_size: int | tf.Tensor) -> tf.Tensor:
    """Resizes axis 1 or 2 of `[B, h, w, 3]` uint8, one source pixel of every sum at a time.

    `new_size` is an integer only if the size of the images is static.
    """
    static = isinstance(new_size, int)
    size = images.shape[axis] if static else tf.shape(images)[axis]
    # Weights of a static size are constants of the graph.
    with tf.init_scope() if static else nullcontext():
        first, weights = _antialias_weights(size, new_size)
    shape = (-1, 1) if axis == 2 else (-1, 1, 1)

    def add(step: int | tf.Tensor, total: tf.Tensor) -> tuple[int | tf.Tensor, tf.Tensor]:
        taken = tf.gather(images, tf.minimum(first + step, size - 1), axis=axis)
        return step + 1, total + tf.cast(taken, tf.int32) * tf.reshape(weights[step], shape)

    place = tf.scatter_nd([[axis]], [new_size - size], [4])
    total = tf.fill(tf.shape(images) + place, 1 << (_WEIGHT_BITS - 1))
    if static:
        for step in range(len(weights)):
            _, total = add(step, total)
    else:
        _, total = tf.while_loop(lambda step, _: step < tf.shape(weights)[0], add, (0, total))
    return tf.cast(tf.bitwise.right_shift(total, _WEIGHT_BITS), tf.uint8)


def _antialias_weights(size: tf.Tensor, new_size: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first source pixel `[n]` of each of n sums, and K weights of each, `[K, n]`.

    A triangle `max(0, 1 - |x + 1/2 - c| / s)` around the centre `c = (i + 1/2) size / n`, with
    `s = max(size / n, 1)`, divided by its sum and rounded to 22 bits.
    """
    scale = tf.cast(size, tf.float64) / tf.cast(new_size, tf.float64)
    reach = tf.maximum(scale, 1.0)
    centre = (tf.cast(tf.range(new_size), tf.float64) + 0.5) * scale
    first = tf.maximum(tf.cast(centre - reach + 0.5, tf.int32), 0)
    count = 2 * tf.cast(tf.math.ceil(reach), tf.int32) + 1
    index = first + tf.range(count)[:, None]
    weights = 1.0 - tf.abs(tf.cast(index, tf.float64) - centre + 0.5) / reach
    weights = tf.where(index < size, tf.maximum(weights, 0.0), 0.0)
    share = weights / tf.reduce_sum(weights, axis=0)
    return first, tf.cast(share * 2**_WEIGHT_BITS + 0.5, tf.int32)


class NetworkInput(NamedTuple):
    """The arguments of `ExportProgram.outputs` after the weights."""

    images: tf.Tensor
    """`[B, H, W, 3]` float32 in 0..255."""
    true_sizes: tf.Tensor
    """`[B, 2]` int32, height and width of the image proper."""
    original_sizes: tf.Tensor
    """`[B, 2]` int32, height and width before resizing."""


def preprocessing(program: ExportProgram) -> Callable[[tf.Tensor], NetworkInput]:
    """Returns the function from the value of the signature's input to the network input."""
    resizer = program.description.resizer
    kind = program.settings.input_type
    if kind == "raw_image_tensor":
        return _unchanged
    if kind not in ENCODED:
        return lambda images: resize_images(images, resizer)
    read = _example_image if kind == "tf_example" else decode_image
    return lambda strings: _each_resized(strings, read, resizer)


def _unchanged(images: tf.Tensor) -> NetworkInput:
    sizes = _repeated(_sizes(images), images)
    return NetworkInput(images, sizes, sizes)


def _each_resized(
    strings: tf.Tensor, read: Callable[[tf.Tensor], tf.Tensor], resizer: schema.Resizer
) -> NetworkInput:
    """Decodes and resizes images `[B]` one by one, since each has its own size."""

    def one(string: tf.Tensor) -> NetworkInput:
        return NetworkInput(*(part[0] for part in resize_images(read(string)[None], resizer)))

    spec = NetworkInput(
        tf.TensorSpec((*resizer.input_size, 3), tf.float32),
        tf.TensorSpec((2,), tf.int32),
        tf.TensorSpec((2,), tf.int32),
    )
    return NetworkInput(*tf.map_fn(one, strings, fn_output_signature=spec))


def _example_image(string: tf.Tensor) -> tf.Tensor:
    feature = {"image/encoded": tf.io.FixedLenFeature((), tf.string)}
    return decode_image(tf.io.parse_single_example(string, feature)["image/encoded"])


def decode_image(string: tf.Tensor) -> tf.Tensor:
    """Decodes a JPEG, PNG, GIF or BMP file to `[h, w, 3]` uint8; of a GIF the first picture.

    The EXIF orientation is not applied, as in training.
    """

    def jpeg() -> tf.Tensor:
        # The accurate transform is that of OpenCV and Pillow, which decode in training.
        return tf.io.decode_jpeg(string, channels=3, dct_method="INTEGER_ACCURATE")

    def other() -> tf.Tensor:
        return tf.io.decode_image(string, channels=3, expand_animations=False)

    image = tf.cond(tf.io.is_jpeg(string), jpeg, other)
    return tf.ensure_shape(image, (None, None, 3))


def resize_images(
    images: tf.Tensor, resizer: schema.Resizer, new_size: Size | None = None
) -> NetworkInput:
    """Resizes images as `inputs.resize.resize_image` does, and pads them to the network input.

    An image larger than the canvas of a resizer that does not shrink fails when the model runs.

    Args:
        images: `[B, h, w, 3]` uint8 or float32 in 0..255.
        new_size: height and width after resizing, if the size of the images is static; the graph
            then has no loops.
    """
    sizes = _sizes(images)
    true_size = resized_sizes(tnp, tf.round, sizes, resizer) if new_size is None else new_size
    resized = images
    if resizer.method is not None and new_size != tuple(images.shape[1:3]):
        resized = _METHODS[resizer.method](images, true_size, resizer.align_corners)
    canvas = _padded(resized, true_size, resizer)
    true_sizes = _repeated(tf.convert_to_tensor(true_size), images)
    return NetworkInput(canvas, true_sizes, _repeated(sizes, images))


def _sizes(images: tf.Tensor) -> tf.Tensor:
    return tf.shape(images)[1:3]


def _repeated(pair: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    return tf.tile(pair[None], [tf.shape(images)[0], 1])


def _padded(images: tf.Tensor, true_size: tf.Tensor, resizer: schema.Resizer) -> tf.Tensor:
    """Pads images `[B, *true_size, 3]` at the bottom and right to the network input."""
    images = tf.cast(images, tf.float32)
    height, width = resizer.input_size
    if isinstance(resizer, schema.FixedShapeResizer):
        return tf.ensure_shape(images, (None, height, width, 3))
    message = f"the image does not fit the canvas {height}x{width}; {ENLARGE_CANVAS}"
    fits = tf.debugging.assert_less_equal(true_size, tf.constant([height, width]), message)
    with tf.control_dependencies([fits]):
        room = tf.constant([height, width]) - true_size
    padded = tf.pad(images, [[0, 0], [0, room[0]], [0, room[1]], [0, 0]])
    rows, columns = tf.range(height)[:, None, None], tf.range(width)[:, None]
    inside = (rows < true_size[0]) & (columns < true_size[1])
    filled = tf.where(inside, padded, tf.constant(resizer.pad_value, tf.float32))
    return tf.ensure_shape(filled, (None, height, width, 3))


def _legacy(name: str) -> Callable[[tf.Tensor, tf.Tensor, bool], tf.Tensor]:
    """Returns a resizing method of TensorFlow 1 by the name of its operation."""

    def resize(images: tf.Tensor, sizes: tf.Tensor, align_corners: bool) -> tf.Tensor:
        operation = getattr(tf.raw_ops, name)
        return operation(images=images, size=sizes, align_corners=align_corners)

    return resize


_METHODS: dict[str, Callable[[tf.Tensor, tf.Tensor, bool], tf.Tensor]] = {
    "bilinear": _legacy("ResizeBilinear"),
    "nearest": _legacy("ResizeNearestNeighbor"),
    "bicubic": _legacy("ResizeBicubic"),
    "area": _legacy("ResizeArea"),
    "bilinear_antialias": antialias,
}
