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

from stillbox.models.layers.lowering.calls import per_platform, standalone
from stillbox.models.layers.lowering.choice import Tiles, choose_tiles
from stillbox.models.layers.lowering.padding import Padding, Pair, padding_pairs
from stillbox.models.layers.lowering.products import flat, input_gradient, product, transposed
from stillbox.models.layers.lowering.reductions import sum_of_rows
from stillbox.models.layers.lowering.unstrided import conv_unstrided
from stillbox.models.layers.lowering.windows import added_up, patch_rows, windows_of
from stillbox.models.parallel import batch_shard_map, without_uneven_shards

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")
# Inputs of at most so many channels are convolved by scalars: a matrix product needs longer rows.
_FEW_CHANNELS = 4
# More taps of few channels are left to XLA: 4 ms in place of 36 for the 7x7 stem of a ResNet.
_FEW_TAPS = 9

Convolution = Callable[[jax.Array, jax.Array], jax.Array]
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
    if stride == 1 and kernel.shape[:2] != (1, 1):
        # Not inside a call, where XLA's CPU backend compiles convolutions to a scalar loop, a
        # hundred times slower.
        pads = padding_pairs(x.shape, kernel.shape, stride, padding, dilation)
        tiles = _tiles(x, kernel, pads) if dilation == 1 else Tiles()
        return without_uneven_shards(conv_unstrided(x, kernel, pads, dilation, tiles))
    # Padding outside the call is fused with the operation that computes x.
    padded = _pad(x, kernel.shape, stride, padding)
    convolve = _conv_by_products if _suits_products(kernel) else _conv_by_xla
    return without_uneven_shards(convolve(padded, kernel, stride))


@jax.named_scope("convolution")
def depthwise_conv2d(
    x: jax.Array, kernel: jax.Array, stride: int, *, padding: Padding = "same"
) -> jax.Array:
    """Convolves every channel `[B, H, W, C]` with its own kernel, `[k, k, C, 1]` of the same type.

    Returns:
        `[B, ceil(H / stride), ceil(W / stride), C]` of the same type; smaller without padding.
    """
    padded = _pad(without_uneven_shards(x), kernel.shape, stride, padding)
    return without_uneven_shards(_depthwise_unpadded(padded, kernel, stride))


def _suits_products(kernel: jax.Array) -> bool:
    """Returns whether a CPU convolves faster by `_conv_on_cpu` than by XLA's convolution."""
    taps = kernel.shape[0] * kernel.shape[1]
    if kernel.shape[2] <= _FEW_CHANNELS:
        return taps <= _FEW_TAPS
    return taps == 1 or kernel.dtype != jnp.float32


def _tiles(x: jax.Array, kernel: jax.Array, pads: tuple[Pair, Pair]) -> Tiles:
    rows, columns = (
        size + sum(pad) - taps + 1
        for size, pad, taps in zip(x.shape[1:3], pads, kernel.shape, strict=False)
    )
    return choose_tiles(kernel.shape, (rows, columns), x.dtype)


def _gradients_of(
    convolution: Convolution, x: jax.Array, kernel: jax.Array, gradient: jax.Array
) -> Gradients:
    return jax.vjp(convolution, x, kernel)[1](gradient)


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
    padded: jax.Array, kernel: jax.Array, gradient: jax.Array, *, stride: int
) -> Gradients:
    if kernel.shape[2] <= _FEW_CHANNELS:
        taps = _kernel_gradient_by_image(padded, gradient, kernel.shape, stride)
    else:
        windows = windows_of(padded, kernel.shape, stride)
        # One product for each tap avoids copying the patches together again.
        taps = jnp.stack([product(transposed(flat(window)), flat(gradient)) for window in windows])
    padded_gradient = input_gradient(gradient, kernel, padded.shape[1:3], stride)
    return padded_gradient, taps.reshape(kernel.shape).astype(kernel.dtype)


def _kernel_gradient_by_image(
    padded: jax.Array, gradient: jax.Array, kernel_shape: tuple[int, ...], stride: int
) -> jax.Array:
    """Sums the products of patches and gradients of each image, `[kh * kw * C, D]` float32.

    The stem of a ResNet takes 12 ms in place of the 49 of one product for each tap.
    """

    def add(total: jax.Array, image: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + product(patch_rows(image[0], kernel_shape, stride), flat(image[1])), None

    start = jnp.zeros((math.prod(kernel_shape[:3]), kernel_shape[3]), jnp.float32)
    return jax.lax.scan(add, start, (padded, gradient))[0]


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


def _depthwise_on_cpu(padded: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    # In float32 also for bfloat16, which a CPU would round after every single addition.
    taps = kernel.reshape(-1, kernel.shape[2]).astype(jnp.float32)
    windows = windows_of(padded.astype(jnp.float32), kernel.shape, stride)
    products = map(operator.mul, windows, taps)
    return functools.reduce(operator.add, products).astype(padded.dtype)


def _depthwise_gradients_on_cpu(
    padded: jax.Array, kernel: jax.Array, gradient: jax.Array, *, stride: int
) -> Gradients:
    taps = []
    for window in windows_of(padded, kernel.shape, stride):

        def block(start: int, stop: int, window: jax.Array = window) -> jax.Array:
            rows = window[:, start:stop].astype(jnp.float32)
            return rows * gradient[:, start:stop].astype(jnp.float32)

        taps.append(sum_of_rows(block, gradient.shape[1]))
    patches = gradient[:, :, :, None, None].astype(jnp.float32) * kernel[..., 0].astype(jnp.float32)
    padded_gradient = added_up(patches, padded.shape[1:3], stride)
    kernel_gradient = jnp.stack(taps).reshape(kernel.shape).astype(kernel.dtype)
    return padded_gradient.astype(padded.dtype), kernel_gradient


def _pad(x: jax.Array, kernel_shape: tuple[int, ...], stride: int, padding: Padding) -> jax.Array:
    pads = padding_pairs(x.shape, kernel_shape, stride, padding)
    return jnp.pad(x, ((0, 0), *pads, (0, 0)))


def _per_platform(
    plain: Callable[..., jax.Array],
    on_cpu: Callable[..., jax.Array] | None,
    gradients_on_cpu: Callable[..., Gradients],
) -> Callable[[jax.Array, jax.Array, int], jax.Array]:
    """Returns a convolution of a padded input with a separate CPU form and CPU gradients.

    Args:
        plain: for all other platforms, differentiated automatically.
        on_cpu: the CPU form; None: the plain one, outside of any call.
        gradients_on_cpu: from padded input, kernel and gradient to those of input and kernel.
    """

    @partial(jax.custom_vjp, nondiff_argnums=(2,))
    def convolve(padded: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
        if on_cpu is None:
            return plain(padded, kernel, stride=stride)
        return per_platform(
            padded,
            kernel,
            cpu=batch_shard_map(
                standalone(on_cpu, stride=stride), ("batch", "replicated"), "batch"
            ),
            default=partial(plain, stride=stride),
        )

    def forward(
        padded: jax.Array, kernel: jax.Array, stride: int
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return convolve(padded, kernel, stride), (padded, kernel)

    def backward(stride: int, saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> Gradients:
        sharded = batch_shard_map(
            standalone(gradients_on_cpu, stride=stride),
            ("batch", "replicated", "batch"),
            ("batch", "replicated"),
        )
        default = partial(_gradients_of, partial(plain, stride=stride))
        return per_platform(*saved, gradient, cpu=sharded, default=default)

    convolve.defvjp(forward, backward)
    return convolve


_conv_by_products = _per_platform(_conv, _conv_on_cpu, _conv_gradients_on_cpu)
_conv_by_xla = _per_platform(_conv, None, _conv_gradients_on_cpu)
_depthwise_unpadded = _per_platform(_depthwise, _depthwise_on_cpu, _depthwise_gradients_on_cpu)
