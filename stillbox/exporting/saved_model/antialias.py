"""The triangle filter of Pillow in operations of TensorFlow (`inputs.antialias`)."""

from contextlib import nullcontext
from typing import Any

import tensorflow as tf

Tensor = Any

# Pillow's precision.
_WEIGHT_BITS = 22


def antialias(images: Tensor, sizes: Any, align_corners: bool) -> Tensor:  # noqa: ANN401
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


def _resize_axis(images: Tensor, axis: int, new_size: Any) -> Tensor:  # noqa: ANN401
    """Resizes axis 1 or 2 of `[B, h, w, 3]` uint8, one source pixel of every sum at a time.

    Args:
        images: of a static size if `new_size` is an integer.
        axis: 1 or 2.
        new_size: an integer or a tensor.
    """
    static = isinstance(new_size, int)
    size = images.shape[axis] if static else tf.shape(images)[axis]
    # Weights of a static size are constants of the graph.
    with tf.init_scope() if static else nullcontext():
        first, weights = _antialias_weights(size, new_size)
    shape = (-1, 1) if axis == 2 else (-1, 1, 1)

    def add(step: Any, total: Tensor) -> tuple[Any, Tensor]:  # noqa: ANN401
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


def _antialias_weights(size: Tensor, new_size: Tensor) -> tuple[Tensor, Tensor]:
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
