"""Max pooling.

XLA's CPU backend takes five times as long for the gradient of a window reduction as for that of a
maximum of shifted views (measured on `[4, 160, 160, 64]`, 3x3 windows, stride 2).
"""

import functools
from functools import partial

import jax
import jax.numpy as jnp

from stillbox.models.layers.lowering.calls import per_platform
from stillbox.models.layers.lowering.padding import Padding, Pair, padding_pairs


def max_pool(x: jax.Array, size: int, stride: int, *, padding: Padding = "same") -> jax.Array:
    """Returns the maximum of each window; what is padded is never the maximum.

    Args:
        x: `[B, H, W, C]`.
        size: side of the window.
        stride: of rows and columns alike.
        padding: see `Padding`.

    Returns:
        `[B, ceil(H / stride), ceil(W / stride), C]` of the same type; smaller without padding.
    """
    if size == 1:
        return x[:, ::stride, ::stride]
    pads = padding_pairs(x.shape, (size, size), stride, padding)
    return per_platform(
        x,
        cpu=partial(_maximum_of_views, size=size, stride=stride, pads=pads),
        default=partial(_reduce_windows, size=size, stride=stride, pads=pads),
    )


def _reduce_windows(x: jax.Array, *, size: int, stride: int, pads: tuple[Pair, Pair]) -> jax.Array:
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, ((0, 0), *pads, (0, 0)))


def _maximum_of_views(
    x: jax.Array, *, size: int, stride: int, pads: tuple[Pair, Pair]
) -> jax.Array:
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    # Where the last window starts at most, so that no view is longer than another.
    rows, columns = (side - size + 1 for side in padded.shape[1:3])
    views = [
        padded[:, top : top + rows : stride, left : left + columns : stride]
        for top in range(size)
        for left in range(size)
    ]
    return functools.reduce(jnp.maximum, views)
