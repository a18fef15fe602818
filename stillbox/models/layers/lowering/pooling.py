"""Max pooling with TF's SAME padding.

XLA's CPU backend takes five times as long for the gradient of a window reduction as for that of a
maximum of shifted views (measured on `[4, 160, 160, 64]`, 3x3 windows, stride 2).
"""

import functools
from functools import partial

import jax
import jax.numpy as jnp

from stillbox.models.layers.lowering.padding import same_padding


def max_pool(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Returns the maximum of each window.

    Args:
        x: `[B, H, W, C]`.
        size: side of the window.
        stride: of rows and columns alike.

    Returns:
        `[B, ceil(H / stride), ceil(W / stride), C]` of the same type.
    """
    if size == 1:
        return x[:, ::stride, ::stride]
    return jax.lax.platform_dependent(
        x,
        cpu=partial(_maximum_of_views, size=size, stride=stride),
        default=partial(_reduce_windows, size=size, stride=stride),
    )


def _reduce_windows(x: jax.Array, *, size: int, stride: int) -> jax.Array:
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "SAME")


def _maximum_of_views(x: jax.Array, *, size: int, stride: int) -> jax.Array:
    pads = [same_padding(side, size, stride) for side in x.shape[1:3]]
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    rows, columns = (-(-side // stride) * stride for side in x.shape[1:3])
    views = [
        padded[:, top : top + rows : stride, left : left + columns : stride]
        for top in range(size)
        for left in range(size)
    ]
    return functools.reduce(jnp.maximum, views)
