"""Pooling of windows.

XLA compiles the gradient of a window maximum to a loop over windows on CPUs, six times slower than
the form below (`[4, 160, 160, 64]`, 3x3 windows, stride 2), and on GPUs to a scatter with an atomic
sum for every window and four arrays of indices. Here the forward pass keeps the index of the
maximum within its window, and the gradient is a sum of shifted, dilated views. TPUs have hardware
for windows.
"""

from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.lowering import current_lowering
from stillbox.models.layers.lowering.primitives import no_inline, per_platform
from stillbox.models.layers.lowering.windows import Padding, Pads, padding_pairs, windows_of
from stillbox.models.parallel import is_spatially_partitioned


class _Windows(NamedTuple):
    """Size, stride and padding of the windows of an input."""

    size: int
    stride: int
    pads: Pads
    sides: tuple[int, int]
    """Height and width of the input."""


def max_pool(x: jax.Array, size: int, stride: int, *, padding: Padding = "same") -> jax.Array:
    """Returns the maximum of each window of `[B, H, W, C]`; padding is never the maximum.

    Of equal elements of a window the first one gets the gradient.

    Returns:
        `[B, ceil(H / stride), ceil(W / stride), C]` of the same type; smaller without padding.
    """
    if size == 1:
        return x[:, ::stride, ::stride]
    pads = padding_pairs(x.shape, (size, size), stride, padding)
    if padding == "symmetric" and current_lowering().pool_edges == "repeated":
        x, pads = jnp.pad(x, ((0, 0), *pads, (0, 0)), mode="edge"), ((0, 0), (0, 0))
    return _max_pool(x, _Windows(size, stride, pads, (x.shape[1], x.shape[2])))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _max_pool(x: jax.Array, windows: _Windows) -> jax.Array:
    return _forward(x, windows)[0]


def _forward(x: jax.Array, windows: _Windows) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    views = partial(_maximum_of_views, windows=windows)
    default = partial(_maximum_of_windows, windows=windows)
    largest, index = per_platform(x, cpu=views, gpu=views, default=default)
    return largest, (x, index)


def _backward(
    windows: _Windows, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array]:
    views = partial(_gradient_of_views, windows=windows)
    default = partial(_gradient_of_windows, windows=windows)
    # As a call: otherwise XLA computes the incoming gradient again for every view.
    on_cpu = no_inline(_gradient_of_views, windows=windows)
    # Each form needs one of the two kept arrays; the compiler removes the other.
    return (per_platform(*kept, gradient, cpu=on_cpu, gpu=views, default=default),)


_max_pool.defvjp(_forward, _backward)


def _reduce_windows(x: jax.Array, windows: _Windows) -> jax.Array:
    size, stride = (1, windows.size, windows.size, 1), (1, windows.stride, windows.stride, 1)
    pads = ((0, 0), *windows.pads, (0, 0))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, size, stride, pads)


def _maximum_of_windows(x: jax.Array, windows: _Windows) -> tuple[jax.Array, jax.Array]:
    largest = _reduce_windows(x, windows)
    return largest, jnp.zeros(largest.shape, jnp.uint8)


def _gradient_of_windows(
    x: jax.Array, index: jax.Array, gradient: jax.Array, windows: _Windows
) -> jax.Array:
    del index
    _, pull = jax.vjp(partial(_reduce_windows, windows=windows), x)
    (result,) = pull(gradient)
    return result


def _maximum_of_views(x: jax.Array, windows: _Windows) -> tuple[jax.Array, jax.Array]:
    """Returns the maxima and the index of each within its window."""
    first, *others = _views(x, windows)
    index_type = jnp.uint8 if windows.size**2 <= 2**8 else jnp.uint16
    largest, index = first, jnp.zeros(first.shape, index_type)
    for number, view in enumerate(others, start=1):
        index = jnp.where(view > largest, index_type(number), index)
        largest = jnp.maximum(largest, view)  # and not `where`, which would drop NaN
    return largest, index


def _views(x: jax.Array, windows: _Windows) -> list[jax.Array]:
    padded = jnp.pad(x, ((0, 0), *windows.pads, (0, 0)), constant_values=-jnp.inf)
    return windows_of(padded, (windows.size, windows.size), windows.stride)


def _gradient_of_views(
    x: jax.Array, index: jax.Array, gradient: jax.Array, windows: _Windows
) -> jax.Array:
    total = jnp.zeros(x.shape, jnp.float32)
    for number in range(windows.size**2):
        share = jnp.where(index == number, gradient, 0).astype(jnp.float32)
        # Places in the input are `stride` apart from window to window.
        places = zip(divmod(number, windows.size), gradient.shape[1:3], strict=True)
        spread = [
            _spread(place, count, windows, axis) for axis, (place, count) in enumerate(places)
        ]
        total += jax.lax.pad(share, np.float32(0), [(0, 0, 0), *spread, (0, 0, 0)])
    return total.astype(x.dtype)


def _spread(place: int, count: int, windows: _Windows, axis: int) -> tuple[int, int, int]:
    """Returns the padding that moves one element of each window to its place along an axis."""
    before = place - windows.pads[axis][0]
    after = windows.sides[axis] - (before + (count - 1) * windows.stride + 1)
    return before, after, windows.stride - 1


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def sum_pool(x: jax.Array, size: int) -> jax.Array:
    """Returns the sum around each pixel of `[B, H, W, C]`; `size` is odd, and padding is 0."""
    return _sum_along(_sum_along(x, 1, size), 2, size)


def _forward_sum(x: jax.Array, size: int) -> tuple[jax.Array, None]:
    return sum_pool(x, size), None


def _backward_sum(size: int, kept: None, gradient: jax.Array) -> tuple[jax.Array]:
    # The window is symmetric: pixel a is in the window of b if b is in the window of a.
    return (sum_pool(gradient, size),)


sum_pool.defvjp(_forward_sum, _backward_sum)


def _sum_along(x: jax.Array, axis: int, size: int) -> jax.Array:
    """Sums shifted views: on a CPU a fifth of the time of windows (`[1, 38, 50, 576]`, 3x3)."""
    if is_spatially_partitioned():
        window = [size if index == axis else 1 for index in range(x.ndim)]
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, (1,) * x.ndim, "SAME")
    pads = [(size // 2,) * 2 if index == axis else (0, 0) for index in range(x.ndim)]
    padded, side = jnp.pad(x, pads), x.shape[axis]
    views = (jax.lax.slice_in_dim(padded, start, start + side, axis=axis) for start in range(size))
    return reduce(jnp.add, views)
