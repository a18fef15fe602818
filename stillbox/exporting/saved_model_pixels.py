"""From what a SavedModel is given to the network input, in operations of TensorFlow.

The program behind it has one shape. Images of any size pass through operations that take any size,
so that a new size compiles nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from stillbox.experiment import schema
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ENCODED
from stillbox.inputs.resize import ENLARGE_CANVAS

Tensor = Any
"""A `tf.Tensor`. TensorFlow has no types, and is imported only where it is used."""


# Pillow's precision.
_WEIGHT_BITS = 22


class NetworkInput(NamedTuple):
    """What `ExportProgram.outputs` takes behind the weights."""

    images: Tensor
    """`[B, H, W, 3]` float32 in 0..255."""
    true_sizes: Tensor
    """`[B, 2]` int32, height and width of the image proper."""
    original_sizes: Tensor
    """`[B, 2]` int32, height and width before resizing."""


def preprocessing(program: ExportProgram) -> Callable[[Tensor], NetworkInput]:
    """Returns what makes the network input of the value of the signature's input."""
    resizer = program.description.resizer
    kind = program.settings.input_type
    if kind == "raw_image_tensor":
        return _unchanged
    if kind not in ENCODED:
        return lambda images: resize_images(images, resizer)
    read = _example_image if kind == "tf_example" else decode_image
    return lambda strings: _each_resized(strings, read, resizer)


def _unchanged(images: Tensor) -> NetworkInput:
    sizes = _repeated(_sizes(images), images)
    return NetworkInput(images, sizes, sizes)


def _each_resized(
    strings: Tensor, read: Callable[[Tensor], Tensor], resizer: schema.Resizer
) -> NetworkInput:
    """Decodes and resizes images `[B]` one by one, since each has its own size."""
    import tensorflow as tf

    def one(string: Tensor) -> NetworkInput:
        return NetworkInput(*(part[0] for part in resize_images(read(string)[None], resizer)))

    spec = NetworkInput(
        tf.TensorSpec((*resizer.input_size, 3), tf.float32),
        tf.TensorSpec((2,), tf.int32),
        tf.TensorSpec((2,), tf.int32),
    )
    return NetworkInput(*tf.map_fn(one, strings, fn_output_signature=spec))


def _example_image(string: Tensor) -> Tensor:
    import tensorflow as tf

    feature = {"image/encoded": tf.io.FixedLenFeature((), tf.string)}
    return decode_image(tf.io.parse_single_example(string, feature)["image/encoded"])


def decode_image(string: Tensor) -> Tensor:
    """Decodes a JPEG, PNG, GIF or BMP file to `[h, w, 3]` uint8; of a GIF the first picture.

    The EXIF orientation is not applied, as in training.
    """
    import tensorflow as tf

    def jpeg() -> Tensor:
        # The slow transform is the one of OpenCV and Pillow, which decode in training.
        return tf.io.decode_jpeg(string, channels=3, dct_method="INTEGER_ACCURATE")

    def other() -> Tensor:
        return tf.io.decode_image(string, channels=3, expand_animations=False)

    image = tf.cond(tf.io.is_jpeg(string), jpeg, other)
    return tf.ensure_shape(image, (None, None, 3))


def resize_images(images: Tensor, resizer: schema.Resizer) -> NetworkInput:
    """Resizes images as `inputs.resize.resize_image` does, and pads them to the network input.

    What is larger than the canvas of a resizer that does not shrink fails when the model runs.

    Args:
        images: `[B, h, w, 3]` uint8 or float32 in 0..255.
        resizer: of the model.
    """
    sizes = _sizes(images)
    shown = _new_sizes(sizes, resizer)
    method = getattr(resizer, "method", None)
    resized = images
    if method is not None:
        align = isinstance(resizer, schema.ConditionalShapeResizer)
        resized = _METHODS[method](images, shown, align)
    canvas = _padded(resized, shown, resizer)
    return NetworkInput(canvas, _repeated(shown, images), _repeated(sizes, images))


def _sizes(images: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.shape(images)[1:3]


def _repeated(pair: Tensor, images: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.tile(pair[None], [tf.shape(images)[0], 1])


def _new_sizes(sizes: Tensor, resizer: schema.Resizer) -> Tensor:
    """Returns height and width after resizing, `[2]`, by the arithmetic of `resized_size`."""
    import tensorflow as tf

    exact = tf.cast(sizes, tf.float32)
    match resizer:
        case schema.FixedShapeResizer():
            return tf.constant([resizer.height, resizer.width])
        case schema.KeepAspectRatioResizer():
            short = _rounded(exact * (resizer.min_dimension / tf.reduce_min(exact)))
            long = _rounded(exact * (resizer.max_dimension / tf.reduce_max(exact)))
            return tf.where(tf.reduce_max(short) > resizer.max_dimension, long, short)
        case schema.ConditionalShapeResizer(condition=condition, threshold=threshold):
            greater = condition == "greater"
            side = tf.reduce_max(exact) if greater else tf.reduce_min(exact)
            target = tf.minimum(side, threshold) if greater else tf.maximum(side, threshold)
            return tf.maximum(tf.cast(exact * (target / side), tf.int32), 1)
        case schema.ScaleJitterResizer():
            frame = tf.constant([resizer.height, resizer.width], tf.float32)
            return _rounded(exact * tf.reduce_min(frame / exact))
    return sizes


def _rounded(sizes: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.maximum(tf.cast(tf.round(sizes), tf.int32), 1)


def _padded(images: Tensor, shown: Tensor, resizer: schema.Resizer) -> Tensor:
    """Pads images `[B, h, w, 3]` of size `shown` at the bottom and right to the network input."""
    import tensorflow as tf

    images = tf.cast(images, tf.float32)
    height, width = resizer.input_size
    if isinstance(resizer, schema.FixedShapeResizer):
        return tf.ensure_shape(images, (None, height, width, 3))
    message = f"the image does not fit the canvas {height}x{width}; {ENLARGE_CANVAS}"
    fits = tf.debugging.assert_less_equal(shown, tf.constant([height, width]), message)
    with tf.control_dependencies([fits]):
        room = tf.constant([height, width]) - shown
    padded = tf.pad(images, [[0, 0], [0, room[0]], [0, room[1]], [0, 0]])
    rows, columns = tf.range(height)[:, None, None], tf.range(width)[:, None]
    inside = (rows < shown[0]) & (columns < shown[1])
    filled = tf.where(inside, padded, tf.constant(resizer.pad_value, tf.float32))
    return tf.ensure_shape(filled, (None, height, width, 3))


def _legacy(name: str) -> Callable[[Tensor, Tensor, bool], Tensor]:
    """Returns the resizing of TensorFlow 1 whose operation has this name."""

    def resize(images: Tensor, sizes: Tensor, align_corners: bool) -> Tensor:
        import tensorflow as tf

        operation = getattr(tf.raw_ops, name)
        return operation(images=images, size=sizes, align_corners=align_corners)

    return resize


def _antialias(images: Tensor, sizes: Tensor, align_corners: bool) -> Tensor:
    """Resizes columns, then rows, in Pillow's integers: whole numbers, equal to the last bit."""
    import tensorflow as tf

    del align_corners  # means nothing to half-pixel centres
    if images.dtype != tf.uint8:
        images = tf.cast(tf.round(images), tf.uint8)
    return _resize_axis(_resize_axis(images, 2, sizes[1]), 1, sizes[0])


def _resize_axis(images: Tensor, axis: int, new_size: Tensor) -> Tensor:
    """Resizes one axis of `[B, h, w, 3]` uint8, one source pixel of every sum at a time."""
    import tensorflow as tf

    size = tf.shape(images)[axis]
    first, weights = _antialias_weights(size, new_size)
    shape = (-1, 1) if axis == 2 else (-1, 1, 1)

    def add(step: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        taken = tf.gather(images, tf.minimum(first + step, size - 1), axis=axis)
        return step + 1, total + tf.cast(taken, tf.int32) * tf.reshape(weights[step], shape)

    place = tf.scatter_nd([[axis]], [new_size - size], [4])
    half = tf.fill(tf.shape(images) + place, 1 << (_WEIGHT_BITS - 1))
    _, total = tf.while_loop(lambda step, _: step < tf.shape(weights)[0], add, (0, half))
    return tf.cast(tf.bitwise.right_shift(total, _WEIGHT_BITS), tf.uint8)


def _antialias_weights(size: Tensor, new_size: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the first source pixel `[n]` of each of n sums, and K weights of each, `[K, n]`.

    A triangle `max(0, 1 - |x + 1/2 - c| / s)` around the centre `c = (i + 1/2) size / n`, with
    `s = max(size / n, 1)`, divided by its sum and rounded to 22 bits.
    """
    import tensorflow as tf

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


_METHODS: dict[str, Callable[[Tensor, Tensor, bool], Tensor]] = {
    "bilinear": _legacy("ResizeBilinear"),
    "nearest": _legacy("ResizeNearestNeighbor"),
    "bicubic": _legacy("ResizeBicubic"),
    "area": _legacy("ResizeArea"),
    "bilinear_antialias": _antialias,
}
