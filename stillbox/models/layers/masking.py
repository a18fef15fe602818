"""Layers that ignore the padding of a batch.

Images of several sizes are in the upper left corners of inputs of one size. Inside
`masked_padding`, layers treat what is beyond an image like what is beyond an input: it is zero, or
does not count in a maximum or a mean. TensorFlow's SAME padding of a strided layer depends on the
length of its input, so the windows of each image are moved to their places without padding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stillbox.boxes.geometry import extents_on_map, stride_of
from stillbox.errors import UserError
from stillbox.models.layers.lowering.windows import Padding, padding_pairs


class _Frame(NamedTuple):
    sizes: jax.Array
    input_shape: tuple[int, int]


_FRAME: ContextVar[_Frame | None] = ContextVar("masked_padding", default=None)


@contextmanager
def masked_padding(sizes: jax.Array, input_shape: tuple[int, int]) -> Iterator[None]:
    """Traces layers inside it to compute for each image what they compute without padding.

    Maps have to be of the same B images, with a power of two as their stride; crops are traced
    outside of it. The results beyond an image are arbitrary. Batch norm that is not frozen counts
    padding in its statistics.

    Args:
        sizes: `[B, 2]`, heights and widths of the images, in pixels of the network input.
        input_shape: height and width of the network input.

    Raises:
        UserError: while a layer is traced: the stride of its map is no power of two.
    """
    token = _FRAME.set(_Frame(sizes, input_shape))
    try:
        yield
    finally:
        _FRAME.reset(token)


def inside(x: jax.Array) -> jax.Array | None:
    """Returns which pixels of maps `[B, H, W, C]` belong to images, `[B, H, W, 1]`; None: all."""
    extents = _extents(x)
    if extents is None:
        return None
    rows, columns = (
        jnp.arange(side)[None] < extents[:, axis, None] for axis, side in enumerate(x.shape[1:3])
    )
    return rows[:, :, None, None] & columns[:, None, :, None]


def zero_padding(x: jax.Array) -> jax.Array:
    """Sets the pixels beyond the images in maps `[B, H, W, C]` to 0."""
    mask = inside(x)
    return x if mask is None else jnp.where(mask, x, jnp.zeros((), x.dtype))


def mean_of_map(x: jax.Array) -> jax.Array:
    """Returns the mean over rows and columns of maps `[B, H, W, C]`, `[B, 1, 1, C]` float32."""
    mask = inside(x)
    axes = (1, 2)
    if mask is None:
        return jnp.mean(x, axes, dtype=jnp.float32, keepdims=True)
    counts = jnp.sum(mask, axes, dtype=jnp.float32, keepdims=True)
    return jnp.sum(zero_padding(x), axes, dtype=jnp.float32, keepdims=True) / counts


def max_of_map(x: jax.Array) -> jax.Array:
    """Returns the maximum over rows and columns of maps `[B, H, W, C]`, `[B, 1, 1, C]`."""
    mask = inside(x)
    counted = x if mask is None else jnp.where(mask, x, jnp.asarray(-jnp.inf, x.dtype))
    return jnp.max(counted, axis=(1, 2), keepdims=True)


def without_padding(
    x: jax.Array, size: int, stride: int, padding: Padding, fill: float = 0.0
) -> tuple[jax.Array, Padding]:
    """Returns input and padding of a layer with the padding of the batch replaced by `fill`.

    Args:
        x: `[B, H, W, C]`.
        size: side of a window.
        stride: distance of the windows.
        padding: of the layer.
        fill: value beyond the images.
    """
    extents, mask = _extents(x), inside(x)
    if extents is None or mask is None or size == 1:
        return x, padding
    x = jnp.where(mask, x, jnp.asarray(fill, x.dtype))
    if stride == 1 or padding != "same":
        return x, padding
    for axis in (1, 2):
        x = _align(x, axis, extents[:, axis - 1], size, stride, fill)
    return x, "valid"


def _extents(x: jax.Array) -> jax.Array | None:
    frame = _FRAME.get()
    if frame is None:
        return None
    shape, sides = (x.shape[1], x.shape[2]), frame.input_shape
    check_stride(shape, sides)
    return extents_on_map(frame.sizes, shape, sides)


def check_stride(map_shape: tuple[int, int], input_shape: tuple[int, int]) -> None:
    """Refuses maps if their places in the input do not follow from their size.

    Raises:
        UserError: the stride of the map is no power of two.
    """
    for map_side, side in zip(map_shape, input_shape, strict=True):
        if -(-side // stride_of(map_side, side)) != map_side:
            raise UserError(
                f"a map of {map_shape[0]} x {map_shape[1]} has no power of two as its stride",
                where="model.backbone",
                fix="take a backbone and neck that pad every layer",
            )


def _align(
    x: jax.Array, axis: int, lengths: jax.Array, size: int, stride: int, fill: float
) -> jax.Array:
    """Pads an axis so that windows without further padding are the windows of each image alone."""
    side = x.shape[axis]
    span = (-(-side // stride) - 1) * stride + size
    # Pixels before the first one, by the length of an image.
    before = [
        padding_pairs((0, length, length), (size, size), stride, "same")[0][0]
        for length in range(side + 1)
    ]
    least, most = min(before), max(before)
    pads = [(0, 0)] * x.ndim
    pads[axis] = (most, max(0, span - side - least))
    padded = jnp.pad(x, pads, constant_values=fill)
    wanted = jnp.asarray(before)[lengths][:, None, None, None]
    result = jax.lax.slice_in_dim(padded, 0, span, axis=axis)
    for pixels in range(least, most):
        start = most - pixels
        moved = jax.lax.slice_in_dim(padded, start, start + span, axis=axis)
        result = jnp.where(wanted == pixels, moved, result)
    return result
