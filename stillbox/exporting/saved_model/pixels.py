"""From what a SavedModel is given to the network input, in operations of TensorFlow.

The program behind it has one shape. Images of any size pass through operations that take any size,
so that a new size compiles nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from stillbox.experiment import schema
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.saved_model.antialias import antialias
from stillbox.exporting.settings import ENCODED
from stillbox.inputs.resize import ENLARGE_CANVAS, Size

Tensor = Any
"""A `tf.Tensor`. TensorFlow has no types, and is imported only where it is used."""


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


def resize_images(
    images: Tensor, resizer: schema.Resizer, new_size: Size | None = None
) -> NetworkInput:
    """Resizes images as `inputs.resize.resize_image` does, and pads them to the network input.

    What is larger than the canvas of a resizer that does not shrink fails when the model runs.

    Args:
        images: `[B, h, w, 3]` uint8 or float32 in 0..255.
        resizer: of the model.
        new_size: height and width after resizing, if those of the images are known; the graph then
            has no loops.
    """
    import tensorflow as tf

    sizes = _sizes(images)
    shown: Any = _new_sizes(sizes, resizer) if new_size is None else new_size
    method = getattr(resizer, "method", None)
    resized = images
    if method is not None and new_size != tuple(images.shape[1:3]):
        align = isinstance(resizer, schema.ConditionalShapeResizer)
        resized = _METHODS[method](images, shown, align)
    canvas = _padded(resized, shown, resizer)
    true_size = tf.convert_to_tensor(shown)
    return NetworkInput(canvas, _repeated(true_size, images), _repeated(sizes, images))


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


_METHODS: dict[str, Callable[[Tensor, Tensor, bool], Tensor]] = {
    "bilinear": _legacy("ResizeBilinear"),
    "nearest": _legacy("ResizeNearestNeighbor"),
    "bicubic": _legacy("ResizeBicubic"),
    "area": _legacy("ResizeArea"),
    "bilinear_antialias": antialias,
}
