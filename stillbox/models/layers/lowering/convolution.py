"""Convolutions with TF's SAME padding: `[B, H, W, C]` by `[kh, kw, C, D]` or `[k, k, C, 1]`."""

import functools
import operator
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from stillbox.models.layers.lowering.calls import standalone
from stillbox.models.layers.lowering.reductions import sum_of_rows

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")
# An input with so few channels is convolved by scalars: a matrix product needs longer rows.
_FEW_CHANNELS = 4

Convolution = Callable[[jax.Array, jax.Array], jax.Array]
Gradients = tuple[jax.Array, jax.Array]


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def conv2d(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Convolves all channels.

    Args:
        x: `[B, H, W, C]`.
        kernel: `[kh, kw, C, D]` of the same type.
        stride: of rows and columns alike.

    Returns:
        `[B, ceil(H / stride), ceil(W / stride), D]` of the same type.
    """
    return jax.lax.platform_dependent(
        x,
        kernel,
        cpu=standalone(_conv_on_cpu, stride=stride),
        default=partial(_conv, stride=stride),
    )


def _conv_forward(
    x: jax.Array, kernel: jax.Array, stride: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return conv2d(x, kernel, stride), (x, kernel)


def _conv_backward(
    stride: int, saved: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> Gradients:
    return jax.lax.platform_dependent(
        *saved,
        gradient,
        cpu=standalone(_conv_gradients_on_cpu, stride=stride),
        default=partial(_gradients_of, partial(_conv, stride=stride)),
    )


conv2d.defvjp(_conv_forward, _conv_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def depthwise_conv2d(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Convolves every channel with its own kernel.

    Args:
        x: `[B, H, W, C]`.
        kernel: `[k, k, C, 1]` of the same type.
        stride: of rows and columns alike.

    Returns:
        `[B, ceil(H / stride), ceil(W / stride), C]` of the same type.
    """
    return jax.lax.platform_dependent(
        x,
        kernel,
        cpu=standalone(_depthwise_on_cpu, stride=stride),
        default=partial(_depthwise, stride=stride),
    )


def _depthwise_forward(
    x: jax.Array, kernel: jax.Array, stride: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return depthwise_conv2d(x, kernel, stride), (x, kernel)


def _depthwise_backward(
    stride: int, saved: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> Gradients:
    return jax.lax.platform_dependent(
        *saved,
        gradient,
        cpu=standalone(_depthwise_gradients_on_cpu, stride=stride),
        default=partial(_gradients_of, partial(_depthwise, stride=stride)),
    )


depthwise_conv2d.defvjp(_depthwise_forward, _depthwise_backward)


def _gradients_of(
    convolution: Convolution, x: jax.Array, kernel: jax.Array, gradient: jax.Array
) -> Gradients:
    return jax.vjp(convolution, x, kernel)[1](gradient)


def _conv_gradients_on_cpu(
    x: jax.Array, kernel: jax.Array, gradient: jax.Array, *, stride: int
) -> Gradients:
    return _gradients_of(partial(_conv_on_cpu, stride=stride), x, kernel, gradient)


def _conv(x: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=_DIMENSIONS
    )


def _depthwise(x: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        kernel.swapaxes(2, 3),
        (stride, stride),
        "SAME",
        dimension_numbers=_DIMENSIONS,
        feature_group_count=x.shape[-1],
    )


def _conv_on_cpu(x: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    height, width, inputs, outputs = kernel.shape
    if stride == 1 and (height, width) != (1, 1):
        return _conv(x, kernel, stride=1)
    if (height, width) == (1, 1):
        patches = x[:, ::stride, ::stride]
    else:
        taps = [window for _, _, window in _windows(x, kernel.shape, stride)]
        patches = jnp.concatenate(taps, axis=-1)
    # The product is only fast as one of two matrices, not as a contraction of four axes.
    flat = patches.reshape(-1, height * width * inputs)
    return (flat @ kernel.reshape(-1, outputs)).reshape(*patches.shape[:3], outputs)


def _depthwise_on_cpu(x: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    products = [
        window * kernel[row, column, :, 0]
        for row, column, window in _windows(x, kernel.shape, stride)
    ]
    return functools.reduce(operator.add, products)


def _depthwise_gradients_on_cpu(
    x: jax.Array, kernel: jax.Array, gradient: jax.Array, *, stride: int
) -> Gradients:
    _, pull_back = jax.vjp(lambda values: _depthwise_on_cpu(values, kernel, stride=stride), x)
    taps = []
    for _, _, window in _windows(x, kernel.shape, stride):

        def block(start: int, stop: int, window: jax.Array = window) -> jax.Array:
            product = window[:, start:stop] * gradient[:, start:stop]
            return product.astype(jnp.float32)

        taps.append(sum_of_rows(block, gradient.shape[1]))
    return pull_back(gradient)[0], jnp.stack(taps).reshape(kernel.shape).astype(kernel.dtype)


def _windows(
    x: jax.Array, kernel_shape: tuple[int, ...], stride: int
) -> list[tuple[int, int, jax.Array]]:
    """For each tap of a kernel its row, its column and what it sees of `x`, `[B, h, w, C]`."""
    pads = [_same_padding(x.shape[axis + 1], kernel_shape[axis], stride) for axis in (0, 1)]
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    height, width = (-(-side // stride) for side in x.shape[1:3])
    windows = []
    for row in range(kernel_shape[0]):
        for column in range(kernel_shape[1]):
            rows = slice(row, row + (height - 1) * stride + 1, stride)
            columns = slice(column, column + (width - 1) * stride + 1, stride)
            windows.append((row, column, padded[:, rows, columns]))
    return windows


def _same_padding(side: int, taps: int, stride: int) -> tuple[int, int]:
    """TF's SAME: as little as possible, the odd pixel at the end."""
    total = max((-(-side // stride) - 1) * stride + taps - side, 0)
    return total // 2, total - total // 2
