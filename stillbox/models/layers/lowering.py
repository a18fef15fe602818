"""Convolutions as plain functions of arrays."""

import jax
import jax.numpy as jnp

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def conv2d(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Convolves `[B, H, W, C]` with `[kh, kw, C, D]`, TF's SAME padding."""
    if kernel.shape[:2] == (1, 1) and stride == 1:
        return (x.reshape(-1, x.shape[-1]) @ kernel[0, 0]).reshape(*x.shape[:-1], -1)
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=_DIMENSIONS
    )


def depthwise_conv2d(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Convolves every channel of `[B, H, W, C]` with its own `[k, k, C, 1]`, SAME padding."""
    size = kernel.shape[0]
    pads = [same_padding(side, size, stride) for side in x.shape[1:3]]
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    height, width = (-(-side // stride) for side in x.shape[1:3])
    result = jnp.zeros((), x.dtype)
    for row in range(size):
        for column in range(size):
            window = jax.lax.slice(
                padded,
                (0, row, column, 0),
                (
                    x.shape[0],
                    row + (height - 1) * stride + 1,
                    column + (width - 1) * stride + 1,
                    x.shape[3],
                ),
                (1, stride, stride, 1),
            )
            result = result + window * kernel[row, column, :, 0]
    return result


def same_padding(side: int, size: int, stride: int) -> tuple[int, int]:
    """TF's SAME: as little as possible, the odd pixel at the end."""
    total = max((-(-side // stride) - 1) * stride + size - side, 0)
    return total // 2, total - total // 2
