"""Padding of convolutions and poolings, in pixels."""

from typing import Literal

import jax
import jax.numpy as jnp

Padding = Literal["same", "symmetric", "valid"]
"""`same`: TensorFlow's, as little as possible, the odd pixel at the end. `symmetric`: equal on all
sides, independent of the stride. `valid`: none."""

Pair = tuple[int, int]
Pads = tuple[Pair, Pair]
"""Pixels before and after, for rows and for columns."""


def padding_of(explicit_padding: bool) -> Padding:
    """Returns the padding that the `explicit_padding` fields of a configuration select."""
    return "symmetric" if explicit_padding else "same"


def padding_pairs(
    image_shape: tuple[int, ...],
    kernel_shape: tuple[int, ...],
    stride: int,
    padding: Padding,
    dilation: int = 1,
) -> Pads:
    """Returns the pixels that a convolution or pooling needs on each side.

    `image_shape` is `[B, H, W, C]`; `kernel_shape` begins with height and width; `dilation` is the
    distance of the kernel's taps.
    """
    pairs = [
        _pair(side, (taps - 1) * dilation + 1, stride, padding)
        for side, taps in zip(image_shape[1:3], kernel_shape[:2], strict=True)
    ]
    return pairs[0], pairs[1]


def output_size(
    image_shape: tuple[int, ...], kernel_shape: tuple[int, ...], pads: Pads
) -> tuple[int, int]:
    """Returns rows and columns of the convolution of padded images without stride and dilation.

    `image_shape` is `[B, H, W, C]`, without the padding; `kernel_shape` begins with height and
    width.
    """
    rows, columns = (
        side + sum(pair) - taps + 1
        for side, pair, taps in zip(image_shape[1:3], pads, kernel_shape[:2], strict=True)
    )
    return rows, columns


def pad(x: jax.Array, pads: Pads) -> jax.Array:
    """Adds zeros around images `[B, H, W, C]`."""
    return jnp.pad(x, ((0, 0), *pads, (0, 0)))


def unpad(x: jax.Array, pads: Pads) -> jax.Array:
    """Removes the borders that `pad` adds to images."""
    (top, bottom), (left, right) = pads
    return x[:, top : x.shape[1] - bottom, left : x.shape[2] - right]


def rotated_pads(kernel_shape: tuple[int, ...], pads: Pads) -> Pads:
    """Returns the pixels around the gradient of a convolution without stride.

    With them the rotated kernel convolves the gradient of the output to that of the input.
    """
    rows, columns = (
        (taps - 1 - before, taps - 1 - after)
        for taps, (before, after) in zip(kernel_shape[:2], pads, strict=True)
    )
    return rows, columns


def _pair(side: int, taps: int, stride: int, padding: Padding) -> Pair:
    if padding == "valid":
        return 0, 0
    if padding == "symmetric":
        return (taps - 1) // 2, taps // 2
    total = max((-(-side // stride) - 1) * stride + taps - side, 0)
    return total // 2, total - total // 2
