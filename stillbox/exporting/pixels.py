"""From images of any size to the network input, inside a traced program.

As in `inputs.interpolation`, an output position is a weighted sum of a few source positions, first
along columns, then along rows. Sizes may be symbolic (`jax.export`); every array of the result has
a fixed shape.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.experiment import schema
from stillbox.image_kind import per_channel

_CUBIC_STEPS, _CUBIC_A = 1024, -0.75
AnyArray = TypeVar("AnyArray")
"""An array of JAX, or a tensor of a graph."""
_HALF = 11
"""Half of the 22 bits of Pillow's weights."""


class _Axis(NamedTuple):
    """One axis of an image."""

    size: Any
    """Source pixels, an integer or a symbolic dimension."""
    new_size: jax.Array
    """Resized pixels, a scalar."""
    canvas: int
    """Pixels of the canvas."""
    align_corners: bool


def resize_images(images: jax.Array, resizer: schema.Resizer) -> tuple[jax.Array, jax.Array]:
    """Resizes images as `inputs.resize.resize_image` does, and pads them to the network input.

    If a resizer does not shrink, an image larger than its canvas is cut off, since a program cannot
    refuse it.

    Args:
        images: `[B, h, w, C]`, uint8 or float32, 0..255.

    Returns:
        `[B, H, W, C]` float32 in 0..255, and height and width of the image proper, `[2]` int32.
    """
    sizes = images.shape[1], images.shape[2]
    old_sizes = jnp.stack([jnp.asarray(size, jnp.int32) for size in sizes])
    new_sizes = resized_sizes(jnp, old_sizes, resizer)
    # A resizer without a method keeps sizes; the nearest pixel is then the pixel itself.
    method = resizer.method or "nearest"
    axes = [
        _Axis(size, new_size, count, resizer.align_corners)
        for size, new_size, count in zip(sizes, new_sizes, resizer.input_size, strict=True)
    ]
    resized = images.astype(jnp.float32)
    whole = method == "bilinear_antialias" and images.dtype == jnp.uint8
    for axis in (1, 0):
        resize = _antialias_whole if whole else _resize_axis
        resized = resize(resized, axis + 1, axes[axis], method)
    true_size = jnp.minimum(new_sizes, jnp.asarray(resizer.input_size, jnp.int32))
    return _padded(resized, true_size, resizer), true_size


def _padded(images: jax.Array, true_size: jax.Array, resizer: schema.Resizer) -> jax.Array:
    if isinstance(resizer, schema.FixedShapeResizer):
        return images
    color = per_channel(resizer.pad_value, images.shape[3])
    rows = jnp.arange(images.shape[1])[:, None, None] < true_size[0]
    columns = jnp.arange(images.shape[2])[:, None] < true_size[1]
    return jnp.where(rows & columns, images, jnp.asarray(color, jnp.float32))


def resized_sizes(
    xp: ModuleType | SimpleNamespace, sizes: AnyArray, resizer: schema.Resizer
) -> AnyArray:
    """Returns height and width after resizing, by the arithmetic of `resized_size`.

    Args:
        xp: `jax.numpy`, or its functions for another kind of array.
        sizes: height and width of the images, `[2]` int32.

    Returns:
        `[2]` int32.
    """
    constant = partial(xp.asarray, dtype=np.float32)

    def rounded(exact: AnyArray) -> AnyArray:
        return xp.maximum(xp.asarray(xp.rint(exact), dtype=np.int32), 1)

    exact = constant(sizes)
    match resizer:
        case schema.FixedShapeResizer():
            return xp.asarray(resizer.input_size, dtype=np.int32)
        case schema.KeepAspectRatioResizer():
            short = rounded(exact * (constant(resizer.min_dimension) / xp.min(exact)))
            long = rounded(exact * (constant(resizer.max_dimension) / xp.max(exact)))
            return xp.where(xp.max(short) > resizer.max_dimension, long, short)
        case schema.ConditionalShapeResizer(condition="greater", threshold=threshold):
            scaled = exact * (xp.minimum(xp.max(exact), constant(threshold)) / xp.max(exact))
        case schema.ConditionalShapeResizer(threshold=threshold):
            scaled = exact * (xp.maximum(xp.min(exact), constant(threshold)) / xp.min(exact))
        case schema.ScaleJitterResizer():
            frame = constant([resizer.height, resizer.width])
            return rounded(exact * xp.min(frame / exact))
        case _:
            return sizes
    return xp.maximum(xp.asarray(scaled, dtype=np.int32), 1)


def _resize_axis(images: jax.Array, axis: int, sizes: _Axis, method: str) -> jax.Array:
    if method in _DENSE:
        return _weighted(images, axis, _DENSE[method](sizes))
    indices, weights = _SPARSE[method](sizes)
    last = jnp.asarray(sizes.size, jnp.int32) - 1
    shape = [1, 1, 1, 1]
    shape[axis] = sizes.canvas
    total = jnp.zeros((), jnp.float32)
    for index, weight in zip(indices, weights, strict=True):
        taken = jnp.take(images, jnp.clip(index, 0, last), axis=axis)
        total = total + taken * weight.reshape(shape)
    return total


def _weighted(images: jax.Array, axis: int, weights: jax.Array) -> jax.Array:
    """Multiplies an axis of `[B, h, w, C]` by weights `[canvas, size]`."""
    spec = "bhwc,oh->bowc" if axis == 1 else "bhwc,ow->bhoc"
    return jnp.einsum(spec, images, weights, precision="highest")


def _antialias_whole(images: jax.Array, axis: int, sizes: _Axis, method: str) -> jax.Array:
    """Resizes uint8 values with Pillow's integers, bit for bit.

    Pillow rounds weights to 22 bits and the sum of products half up. Each half of 11 bits gives
    sums that float32 holds exactly, for up to 32 source pixels a sum.
    """
    del method
    weights = _fixed_point(_triangle(sizes))
    high, low = (
        _weighted(images, axis, part.astype(jnp.float32)).astype(jnp.int32)
        for part in (weights >> _HALF, weights & (2**_HALF - 1))
    )
    total = (high << _HALF) + low + (1 << (2 * _HALF - 1))
    return (total >> (2 * _HALF)).astype(jnp.float32)


def _triangle(axis: _Axis) -> jax.Array:
    """Returns weights `[canvas, size]` int32, in the same unit within a row.

    `max(0, 1 - |x + 1/2 - (o + 1/2) n / m| / max(n / m, 1))`, times `2 max(n, m)`.
    """
    old, new = jnp.asarray(axis.size, jnp.int32), axis.new_size
    source = (2 * jnp.arange(axis.size, dtype=jnp.int32) + 1) * new
    centre = (2 * jnp.arange(axis.canvas, dtype=jnp.int32) + 1) * old
    return jnp.maximum(2 * jnp.maximum(old, new) - jnp.abs(source - centre[:, None]), 0)


def _fixed_point(weights: jax.Array) -> jax.Array:
    """Returns each row's shares `[canvas, size]` of its sum as integers of 22 bits, rounded."""
    total = jnp.maximum(weights.sum(axis=1, keepdims=True), 1)
    # Long division, 11 bits at a time: a product with 2**22 would not fit into 32 bits.
    high, rest = jnp.divmod(weights << _HALF, total)
    low, rest = jnp.divmod(rest << _HALF, total)
    return (high << _HALF) + low + (2 * rest >= total)


def _positions(axis: _Axis) -> tuple[jax.Array, jax.Array]:
    """Returns source positions `[canvas]` and the scale, as `inputs.interpolation._positions`."""
    size = jnp.asarray(axis.size, jnp.int32).astype(jnp.float32)
    new_size = axis.new_size.astype(jnp.float32)
    scale = size / new_size
    if axis.align_corners:
        aligned = (size - 1) / jnp.maximum(new_size - 1, 1)
        scale = jnp.where(jnp.minimum(size, new_size) > 1, aligned, scale)
    return jnp.arange(axis.canvas, dtype=jnp.float32) * scale, scale


_Taps = tuple[list[jax.Array], list[jax.Array]]


def _bilinear(axis: _Axis) -> _Taps:
    return _linear(_positions(axis)[0])


def _bilinear_half_pixel(axis: _Axis) -> _Taps:
    size = jnp.asarray(axis.size, jnp.int32).astype(jnp.float32)
    scale = size / axis.new_size.astype(jnp.float32)
    centres = (jnp.arange(axis.canvas, dtype=jnp.float32) + 0.5) * scale
    return _linear(jnp.maximum(centres - 0.5, 0))


def _linear(position: jax.Array) -> _Taps:
    below = jnp.floor(position)
    share = position - below
    index = below.astype(jnp.int32)
    return [index, index + 1], [1 - share, share]


def _nearest(axis: _Axis) -> _Taps:
    position, _ = _positions(axis)
    index = jnp.floor(position + 0.5 * axis.align_corners).astype(jnp.int32)
    return [index], [jnp.ones(axis.canvas)]


def _bicubic(axis: _Axis) -> _Taps:
    position, _ = _positions(axis)
    below = jnp.floor(position)
    share = jnp.rint((position - below) * _CUBIC_STEPS) / _CUBIC_STEPS
    steps = range(-1, 3)
    return [below.astype(jnp.int32) + step for step in steps], [
        _cubic(jnp.abs(share - step)) for step in steps
    ]


def _cubic(distance: jax.Array) -> jax.Array:
    """Keys' cubic with A = -0.75."""
    a = _CUBIC_A
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return jnp.where(distance <= 1, near, far)


def _area(axis: _Axis) -> jax.Array:
    """Returns weights `[canvas, size]`: the share of each source pixel in the footprint."""
    start, scale = _positions(axis)
    source = jnp.arange(axis.size, dtype=jnp.float32)
    end = jnp.arange(1, axis.canvas + 1, dtype=jnp.float32) * scale
    covered = jnp.minimum(source + 1, end[:, None]) - jnp.maximum(source, start[:, None])
    return jnp.maximum(covered, 0) / scale


def _antialias(axis: _Axis) -> jax.Array:
    """Returns weights `[canvas, size]`: a triangle that widens with the scale."""
    weights = _triangle(axis).astype(jnp.float32)
    # Rows beyond the resized image have no source pixels; they become padding.
    return weights / jnp.maximum(weights.sum(axis=1, keepdims=True), 1)


_SPARSE: dict[str, Callable[[_Axis], _Taps]] = {
    "bilinear": _bilinear,
    "bilinear_half_pixel": _bilinear_half_pixel,
    "nearest": _nearest,
    "bicubic": _bicubic,
}
_DENSE: dict[str, Callable[[_Axis], jax.Array]] = {"area": _area, "bilinear_antialias": _antialias}
