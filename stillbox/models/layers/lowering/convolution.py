"""Convolutions with TF's paddings: `[B, H, W, C]` by `[kh, kw, C, D]` or `[k, k, C, 1]`.

Measured on two CPUs: XLA's convolution is good at large kernels. A 1x1 is faster as a matrix
product, a depthwise one as shifted multiply-adds, a strided one of bfloat16 as a product of
patches, and a 3x3 of the first layer, with three channels, as scaled sums. XLA's gradients of
strided ones are slow.
"""

import functools
import math
import operator
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from stillbox.models.layers.lowering import depthwise
from stillbox.models.layers.lowering.bits import from_bits, to_bits
from stillbox.models.layers.lowering.calls import per_platform, standalone
from stillbox.models.layers.lowering.choice import Tiles, choose_tiles
from stillbox.models.layers.lowering.padding import (
    Padding,
    Pads,
    output_size,
    pad,
    padding_pairs,
    unpad,
)
from stillbox.models.layers.lowering.prepared import convolve_prepared
from stillbox.models.layers.lowering.products import flat, input_gradient, product, transposed
from stillbox.models.layers.lowering.unstrided import conv_unstrided
from stillbox.models.layers.lowering.windows import patch_rows, windows_of
from stillbox.models.parallel import batch_shard_map, without_uneven_shards

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")
# Inputs of at most so many channels are convolved by scalars: a matrix product needs longer rows.
_FEW_CHANNELS = 4
# More taps of few channels are left to XLA: 4 ms in place of 36 for the 7x7 stem of a ResNet.
_FEW_TAPS = 9

Gradients = tuple[jax.Array, jax.Array]


@jax.named_scope("convolution")
def conv2d(
    x: jax.Array,
    kernel: jax.Array,
    stride: int,
    *,
    padding: Padding = "same",
    dilation: int = 1,
) -> jax.Array:
    """Convolves all channels of `[B, H, W, C]` with a kernel `[kh, kw, C, D]` of the same type.

    `dilation` is the distance of the kernel's taps in pixels; above 1, the stride has to be 1.

    Returns:
        `[B, ceil(H / stride), ceil(W / stride), D]` of the same type; smaller without padding.
    """
    x = without_uneven_shards(x)
    pads = padding_pairs(x.shape, kernel.shape, stride, padding, dilation)
    if stride == 1 and kernel.shape[:2] != (1, 1):
        tiles = Tiles()
        if dilation == 1:
            # Outside of `conv_unstrided`: its custom derivative is traced with arrays of its own.
            if (y := convolve_prepared(x, kernel, pads)) is not None:
                return y
            size = output_size(x.shape, kernel.shape, pads)
            tiles = choose_tiles(kernel.shape, size, x.dtype)
        # Not inside a call, where XLA's CPU backend compiles convolutions to a scalar loop, a
        # hundred times slower.
        return without_uneven_shards(conv_unstrided(x, kernel, pads, dilation, tiles))
    convolve = _conv_by_products if _suits_products(kernel) else _conv_by_xla
    return without_uneven_shards(convolve(x, kernel, stride, pads))


@jax.named_scope("convolution")
def depthwise_conv2d(
    x: jax.Array, kernel: jax.Array, stride: int, *, padding: Padding = "same"
) -> jax.Array:
    """Convolves every channel `[B, H, W, C]` with its own kernel, `[k, k, C, 1]` of the same type.

    Returns:
        `[B, ceil(H / stride), ceil(W / stride), C]` of the same type; smaller without padding.
    """
    x = without_uneven_shards(x)
    pads = padding_pairs(x.shape, kernel.shape, stride, padding)
    return without_uneven_shards(_depthwise_conv(x, kernel, stride, pads))


def _suits_products(kernel: jax.Array) -> bool:
    """Returns whether a CPU convolves faster by `_conv_on_cpu` than by XLA's convolution."""
    taps = kernel.shape[0] * kernel.shape[1]
    if kernel.shape[2] <= _FEW_CHANNELS:
        return taps <= _FEW_TAPS
    return taps == 1 or kernel.dtype != jnp.float32


def _conv(padded: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    return jax.lax.conv_general_dilated(
        padded, kernel, (stride, stride), "VALID", dimension_numbers=_DIMENSIONS
    )


def _depthwise(padded: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    return jax.lax.conv_general_dilated(
        padded,
        kernel.swapaxes(2, 3),
        (stride, stride),
        "VALID",
        dimension_numbers=_DIMENSIONS,
        feature_group_count=padded.shape[-1],
    )


def _conv_on_cpu(padded: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    windows = windows_of(padded, kernel.shape, stride)
    if kernel.shape[2] <= _FEW_CHANNELS:
        return _sum_of_scaled(windows, kernel)
    patches = jnp.concatenate(windows, axis=-1)
    # Not `product`: consumers are fused with a result whose layout is not fixed.
    flat_result = jnp.matmul(flat(patches), flat(kernel), preferred_element_type=jnp.float32)
    return flat_result.reshape(*patches.shape[:3], -1).astype(padded.dtype)


def _conv_gradients_on_cpu(
    padded: jax.Array, kernel: jax.Array, gradient: jax.Array, *, stride: int, pads: Pads
) -> Gradients:
    if kernel.shape[2] <= _FEW_CHANNELS:
        taps = _kernel_gradient_by_image(padded, gradient, kernel.shape, stride)
    else:
        windows = windows_of(padded, kernel.shape, stride)
        # One product for each tap avoids copying the patches together again.
        taps = jnp.stack([product(transposed(flat(window)), flat(gradient)) for window in windows])
    of_padded = input_gradient(gradient, kernel, padded.shape[1:3], stride)
    return unpad(of_padded, pads), taps.reshape(kernel.shape).astype(kernel.dtype)


def _kernel_gradient_by_image(
    padded: jax.Array, gradient: jax.Array, kernel_shape: tuple[int, ...], stride: int
) -> jax.Array:
    """Sums the products of patches and gradients of each image, `[kh * kw * C, D]` float32.

    The stem of a ResNet takes 12 ms in place of the 49 of one product for each tap.
    """

    def add(total: jax.Array, image: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        seen, above = (from_bits(bits, padded.dtype) for bits in image)
        return total + product(patch_rows(seen, kernel_shape, stride), flat(above)), None

    start = jnp.zeros((math.prod(kernel_shape[:3]), kernel_shape[3]), jnp.float32)
    return jax.lax.scan(add, start, (to_bits(padded), to_bits(gradient)))[0]


def _sum_of_scaled(windows: list[jax.Array], kernel: jax.Array) -> jax.Array:
    """Sums each channel of each window times its row of the kernel, `[B, h, w, D]`."""
    rows = kernel.reshape(-1, kernel.shape[3]).astype(jnp.float32)
    channels = [
        window[..., channel, None].astype(jnp.float32)
        for window in windows
        for channel in range(kernel.shape[2])
    ]
    products = map(operator.mul, channels, rows)
    return functools.reduce(operator.add, products).astype(windows[0].dtype)


def _per_platform(
    plain: Callable[..., jax.Array],
    on_cpu: Callable[..., jax.Array] | None,
    gradients_on_cpu: Callable[..., Gradients],
) -> Callable[[jax.Array, jax.Array, int, Pads], jax.Array]:
    """Returns a convolution with a separate CPU form and CPU gradients.

    Args:
        plain: of a padded input, for all other platforms, differentiated automatically.
        on_cpu: the CPU form of it; None: the plain one, outside of any call.
        gradients_on_cpu: from padded input, kernel and gradient to those of the input without its
            padding and of the kernel.
    """

    @partial(jax.custom_vjp, nondiff_argnums=(2, 3))
    def convolve(x: jax.Array, kernel: jax.Array, stride: int, pads: Pads) -> jax.Array:
        return forward(x, kernel, stride, pads)[0]

    def forward(
        x: jax.Array, kernel: jax.Array, stride: int, pads: Pads
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        # Padding outside the call is fused with the operation that computes x.
        padded = pad(x, pads)
        default = partial(plain, stride=stride)
        if on_cpu is None:
            return default(padded, kernel), (padded, kernel)
        sharded = batch_shard_map(
            standalone(on_cpu, stride=stride), ("batch", "replicated"), "batch"
        )
        return per_platform(padded, kernel, cpu=sharded, default=default), (padded, kernel)

    def backward(
        stride: int, pads: Pads, saved: tuple[jax.Array, jax.Array], gradient: jax.Array
    ) -> Gradients:
        def default(padded: jax.Array, kernel: jax.Array, gradient: jax.Array) -> Gradients:
            _, pull = jax.vjp(partial(plain, stride=stride), padded, kernel)
            of_padded, of_kernel = pull(gradient)
            return unpad(of_padded, pads), of_kernel

        sharded = batch_shard_map(
            standalone(gradients_on_cpu, stride=stride, pads=pads),
            ("batch", "replicated", "batch"),
            ("batch", "replicated"),
        )
        return per_platform(*saved, gradient, cpu=sharded, default=default)

    convolve.defvjp(forward, backward)
    return convolve


_conv_by_products = _per_platform(_conv, _conv_on_cpu, _conv_gradients_on_cpu)
_conv_by_xla = _per_platform(_conv, None, _conv_gradients_on_cpu)
_depthwise_conv = _per_platform(_depthwise, depthwise.convolve, depthwise.gradients)
