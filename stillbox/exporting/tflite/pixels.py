"""From images of one size to the network input, as sums of gathered rows and columns.

Source positions and weights of a fixed size are constants of the program (`inputs.interpolation`),
in which nothing is as large as the product of both sizes.
"""

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.experiment import schema
from stillbox.inputs.interpolation import TAPS, Taps
from stillbox.inputs.resize import Size, resized_size

# Pillow's precision.
_WEIGHT_BITS = 22


def resize_images(images: jax.Array, resizer: schema.Resizer) -> jax.Array:
    """Resizes images as `inputs.resize.resize_image` does, and pads them to the network input.

    Args:
        images: `[B, h, w, 3]`, uint8 or float32, 0..255, which have no `misfit`.

    Returns:
        `[B, H, W, 3]` float32 in 0..255.
    """
    size = images.shape[1], images.shape[2]
    new_size = resized_size(size, resizer)
    if resizer.method == "bilinear_antialias" and new_size != size:
        images = jnp.rint(images).astype(jnp.uint8)
        for axis in (2, 1):
            images = _antialiased(images, axis, new_size[axis - 1])
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


def _antialiased(images: jax.Array, axis: int, new_size: int) -> jax.Array:
    """Resizes an axis of uint8 images in Pillow's integers, bit for bit."""
    total = _weighted(images, axis, antialias_taps(images.shape[axis], new_size))
    half = 1 << (_WEIGHT_BITS - 1)
    return ((total + half) >> _WEIGHT_BITS).astype(jnp.uint8)


def antialias_taps(size: int, new_size: int) -> Taps:
    """Returns K source pixels of each result, `[K, n]`, and their weights, `[K, n]` int32.

    A triangle `max(0, 1 - |x + 1/2 - c| / s)` around the centre `c = (i + 1/2) size / n`, with
    `s = max(size / n, 1)`, divided by its sum and rounded to 22 bits, as in Pillow.
    """
    scale = size / new_size
    reach = max(scale, 1.0)
    centre = (np.arange(new_size) + 0.5) * scale
    first = np.maximum((centre - reach + 0.5).astype(np.int32), 0)
    index = first + np.arange(2 * int(np.ceil(reach)) + 1)[:, None]
    weights = np.maximum(1.0 - np.abs(index - centre + 0.5) / reach, 0.0) * (index < size)
    share = weights / weights.sum(axis=0)
    whole = (share * 2**_WEIGHT_BITS + 0.5).astype(np.int32)
    return np.minimum(index, size - 1), whole


def _padded(images: jax.Array, size: Size, resizer: schema.Resizer) -> jax.Array:
    """Pads images `[B, *size, 3]` at the bottom and right to the network input."""
    rows, columns = (most - side for most, side in zip(resizer.input_size, size, strict=True))
    if not rows and not columns:
        return images
    padded = jnp.pad(images, ((0, 0), (0, rows), (0, columns), (0, 0)))
    inside = np.pad(np.ones(size, np.bool_), ((0, rows), (0, columns)))[..., None]
    return jnp.where(inside, padded, np.array(resizer.pad_value, np.float32))
