"""Pooling and upsampling of feature maps that ignore padding, see `masking`."""

from functools import partial

import jax
import jax.numpy as jnp

from stillbox.lowering import current_lowering
from stillbox.models.layers.lowering import pooling
from stillbox.models.layers.lowering.windows import Padding
from stillbox.models.layers.masking import inside, without_padding, zero_padding


def max_pool(x: jax.Array, size: int, stride: int, *, padding: Padding = "same") -> jax.Array:
    """Returns the maximum of each window of `[B, H, W, C]`; see `lowering.pooling.max_pool`."""
    windows, padding = without_padding(x, size, stride, padding, -jnp.inf)
    # Beyond the images there is infinity, which times a gradient of 0 would be NaN.
    return zero_padding(pooling.max_pool(windows, size, stride, padding=padding))


def max_pool_with_zeros(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Returns the maximum of each window of `[B, H, W, C]` padded by zeros, which count too.

    The padding is symmetric, independent of the stride.
    """
    before, after = (size - 1) // 2, size // 2
    padded = jnp.pad(zero_padding(x), ((0, 0), (before, after), (before, after), (0, 0)))
    return pooling.max_pool(padded, size, stride, padding="valid")


def average_pool(x: jax.Array, size: int) -> jax.Array:
    """Returns the mean of the pixels of `[B, H, W, C]` in a window around each, of x's type.

    `size` is the side of the window, odd; sums are float32.
    """
    mask = inside(x)
    counted = jnp.ones((1, *x.shape[1:3], 1), bool) if mask is None else mask
    total = pooling.sum_pool(zero_padding(x).astype(jnp.float32), size)
    count = pooling.sum_pool(counted.astype(jnp.float32), size)
    return (total / jnp.maximum(count, 1.0)).astype(x.dtype)


def upsample(x: jax.Array, factor: int) -> jax.Array:
    """Repeats pixels: `[B, H, W, C]` to `[B, factor * H, factor * W, C]`, nearest neighbour."""
    batch, height, width, channels = x.shape
    if current_lowering().upsampling == "concatenation":
        rows = jnp.concatenate([x] * factor, axis=-1).reshape(batch, height, -1)
        repeated = jnp.concatenate([rows] * factor, axis=-1)
    else:
        shape = (batch, height, factor, width, factor, channels)
        repeated = jnp.broadcast_to(x[:, :, None, :, None], shape)
    return repeated.reshape(batch, factor * height, factor * width, channels)


def double(x: jax.Array) -> jax.Array:
    """Maps `[B, H, W, C]` to `[B, 2 H, 2 W, C]` by bilinear interpolation.

    Centres of pixels are at halves, and the pixel at an edge goes on beyond it: PyTorch's
    `interpolate` with `align_corners=False`.
    """
    for axis in (1, 2):
        near = 0.75 * x
        before, after = (near + 0.25 * _neighbours(x, axis, step) for step in (-1, 1))
        # Every second place of the axis, without an axis of its own.
        rows = (*x.shape[: axis + 1], -1)
        joined = jnp.concatenate([before.reshape(rows), after.reshape(rows)], axis=-1)
        shape = (length * (1 + (place == axis)) for place, length in enumerate(x.shape))
        x = joined.reshape(*shape)
    return x


def halve(x: jax.Array) -> jax.Array:
    """Maps `[B, H, W, C]` to `[B, ceil(H / 2), ceil(W / 2), C]` by bilinear interpolation.

    See `double`: a pixel is the mean of four.
    """
    x = 0.5 * (x + _neighbours(x, 1, 1))[:, ::2]
    return 0.5 * (x + _neighbours(x, 2, 1))[:, :, ::2]


def _neighbours(x: jax.Array, axis: int, step: int) -> jax.Array:
    """Returns for each pixel of `[B, H, W, C]` the next one (1) or the one before (-1).

    A pixel at an edge of its image is its own neighbour.
    """
    side, mask = x.shape[axis], inside(x)
    part = partial(jax.lax.slice_in_dim, x, axis=axis)
    if step < 0:
        return jnp.concatenate([part(0, 1), part(0, side - 1)], axis=axis)
    following = jnp.concatenate([part(1, side), part(side - 1, side)], axis=axis)
    return following if mask is None else jnp.where(jnp.roll(mask, -1, axis), following, x)
