"""Depthwise convolutions of a padded input as elementwise sums, for XLA's CPU backend."""

import functools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from stillbox.models.layers.lowering.bits import from_bits, to_bits
from stillbox.models.layers.lowering.padding import Pads, pad, rotated_pads, unpad
from stillbox.models.layers.lowering.reductions import fold_rows, sum_by_product
from stillbox.models.layers.lowering.windows import added_up, windows_of


def convolve(padded: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    """Convolves `[B, H, W, C]` without padding with `[k, k, C, 1]` of the same type."""
    return _sum_of_scaled(to_bits(padded), kernel, stride)


def gradients(
    padded: jax.Array, kernel: jax.Array, gradient: jax.Array, *, stride: int, pads: Pads
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradients of input and kernel of `convolve`, that of the input unpadded."""
    if stride == 1:
        of_input = _unstrided_input_gradient(kernel, gradient, pads)
    else:
        of_padded = _strided_input_gradient(kernel, gradient, padded.shape[1:3], stride)
        of_input = unpad(of_padded, pads)
    return of_input, _kernel_gradient(padded, gradient, kernel.shape, stride)


def _unstrided_input_gradient(kernel: jax.Array, gradient: jax.Array, pads: Pads) -> jax.Array:
    """Convolves the gradient with the rotated kernel."""
    around = pad(to_bits(gradient), rotated_pads(kernel.shape, pads))
    return _sum_of_scaled(around, kernel[::-1, ::-1], 1)


def _strided_input_gradient(
    kernel: jax.Array, gradient: jax.Array, size: tuple[int, ...], stride: int
) -> jax.Array:
    patches = gradient[:, :, :, None, None].astype(jnp.float32) * kernel[..., 0].astype(jnp.float32)
    return added_up(patches, size, stride).astype(gradient.dtype)


def _kernel_gradient(
    padded: jax.Array, gradient: jax.Array, kernel_shape: Sequence[int], stride: int
) -> jax.Array:
    """Sums products of gradients and what each tap sees, row by row.

    One tap after the other over the whole arrays takes up to three times as long.
    """
    batch, height, width, channels = gradient.shape
    seen, above = to_bits(padded), to_bits(gradient)
    taps = [(down, right) for down in range(kernel_shape[0]) for right in range(kernel_shape[1])]

    def row(source: jax.Array, index: jax.Array, first: int, step: int) -> jax.Array:
        shape = (batch, 1, (width - 1) * step + 1, channels)
        values = jax.lax.dynamic_slice(source, (0, index, first, 0), shape)
        return from_bits(values[:, :, ::step], padded.dtype).astype(jnp.float32)

    def add(totals: list[jax.Array], index: jax.Array) -> list[jax.Array]:
        own = row(above, index, 0, 1)
        return [
            total + row(seen, index * stride + down, right, stride) * own
            for total, (down, right) in zip(totals, taps, strict=True)
        ]

    totals = [jnp.zeros((batch, 1, width, channels), jnp.float32) for _ in taps]
    sums = [sum_by_product(total) for total in fold_rows(add, totals, height)]
    return jnp.stack(sums).reshape(kernel_shape).astype(padded.dtype)


def _sum_of_scaled(bits: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    # In float32 also for bfloat16, which a CPU would round after every single addition.
    scales = kernel.reshape(-1, kernel.shape[2]).astype(jnp.float32)
    windows = (
        from_bits(window, kernel.dtype).astype(jnp.float32)
        for window in windows_of(bits, kernel.shape, stride)
    )
    total = functools.reduce(operator.add, map(operator.mul, windows, scales))
    return total.astype(kernel.dtype)
