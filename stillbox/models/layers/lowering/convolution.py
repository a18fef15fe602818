"""Convolutions with TF's paddings: `[B, H, W, C]` by `[kh, kw, C, D]` or `[k, k, C, 1]`.

Measured on two CPUs: XLA's convolution is good at large kernels. A 1x1 is faster as a matrix
product, a depthwise one as shifted multiply-adds, a strided one of bfloat16 as a product of
patches, and a 3x3 of the first layer, with three channels, as scaled sums. XLA's gradients of
strided convolutions are slow.

Without stride XLA's CPU backend has a fast convolution and gradient of the input. Winograd's
algorithm is faster still for 3x3 kernels, and in bfloat16. XLA's gradient of the kernel, which
slides one image over another, is two to four times slower. As a product of patches it is fast
while the patches fit in the cache. For 8 images of 38 x 38 x 256 to 256 channels two cores reach
57 GFLOP/s with a convolution, 154 with the patches of the whole batch, 220 image by image.
"""

import functools
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from stillbox.models.layers.lowering import windows, winograd
from stillbox.models.layers.lowering.primitives import from_bits, no_inline, per_platform, to_bits
from stillbox.models.layers.lowering.windows import (
    Padding,
    Pads,
    flat,
    input_gradient,
    outer_products,
    output_size,
    pad,
    padding_pairs,
    patch_rows,
    product,
    rotated_pads,
    transposed,
    unpad,
    windows_of,
)
from stillbox.models.layers.lowering.winograd import (
    Tile,
    Tiles,
    Transformed,
    choose_tiles,
    convolve_transformed,
    inference_tile,
)
from stillbox.models.parallel import batch_shard_map, without_uneven_shards

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")
# Bytes of patches at a time, and output channels below which a product is too narrow.
_PATCH_BYTES = 16 * 2**20
_FEW_OUTPUT_CHANNELS = 32
# Rows and columns up to which the input gradient of bfloat16 is a product: 2.6 ms in place of 7.0
# for 4 images of 10 x 10 x 512.
_SMALL_SIDE = 15


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def conv_unstrided(
    x: jax.Array, kernel: jax.Array, pads: Pads, dilation: int, tiles: Tiles
) -> jax.Array:
    """Convolves `[B, H, W, C]` with `[kh, kw, C, D]` of the same type to `[B, H', W', D]`.

    `dilation` is the distance of the kernel's taps in pixels. `[1, 38, 50, 512]`, in block 4 of a
    ResNet at stride 16, takes a CPU as long with a distance of 2 as with 1. `tiles` has the sizes
    of each pass on a CPU; none with a dilation.
    """
    plain = partial(_convolved, pads=pads, dilation=dilation)
    if tiles.forward is None:
        return plain(x, kernel)
    tiled = partial(winograd.convolve, pads=pads, tile=tiles.forward)
    on_cpu = batch_shard_map(tiled, ("batch", "replicated"), "batch")
    return per_platform(x, kernel, cpu=on_cpu, default=plain)


def _forward(
    x: jax.Array, kernel: jax.Array, pads: Pads, dilation: int, tiles: Tiles
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return conv_unstrided(x, kernel, pads, dilation, tiles), (x, kernel)


def _backward(
    pads: Pads,
    dilation: int,
    tiles: Tiles,
    saved: tuple[jax.Array, jax.Array],
    gradient: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    return (
        _input_gradient(x, kernel, gradient, pads, dilation, tiles.input_gradient),
        _kernel_gradient(x, kernel, gradient, pads, dilation, tiles.kernel_gradient),
    )


conv_unstrided.defvjp(_forward, _backward)


def _input_gradient(
    x: jax.Array,
    kernel: jax.Array,
    gradient: jax.Array,
    pads: Pads,
    dilation: int,
    tile: Tile | None,
) -> jax.Array:
    def plain(kernel: jax.Array, gradient: jax.Array) -> jax.Array:
        zeros = jnp.zeros(x.shape, x.dtype)
        _, pull = jax.vjp(lambda x: _convolved(x, kernel, pads=pads, dilation=dilation), zeros)
        return pull(gradient)[0]

    def tiled(kernel: jax.Array, gradient: jax.Array) -> jax.Array:
        assert tile is not None
        around = rotated_pads(kernel.shape, pads)
        return winograd.convolve(gradient, winograd.rotated(kernel), pads=around, tile=tile)

    def by_products(kernel: jax.Array, gradient: jax.Array) -> jax.Array:
        (top, bottom), (left, right) = pads
        height, width = x.shape[1:3]
        size = (top + height + bottom, left + width + right)
        return unpad(input_gradient(gradient, kernel, size, stride=1), pads)

    small = max(x.shape[1:3]) <= _SMALL_SIDE and dilation == 1
    if tile is None and (not small or x.dtype == jnp.float32):
        return plain(kernel, gradient)
    form = by_products if tile is None else tiled
    on_cpu = batch_shard_map(form, ("replicated", "batch"), "batch")
    return per_platform(kernel, gradient, cpu=on_cpu, default=plain)


def _kernel_gradient(
    x: jax.Array,
    kernel: jax.Array,
    gradient: jax.Array,
    pads: Pads,
    dilation: int,
    tile: Tile | None,
) -> jax.Array:
    shape = kernel.shape

    def plain(x: jax.Array, gradient: jax.Array) -> jax.Array:
        zeros = jnp.zeros(shape, x.dtype)
        _, pull = jax.vjp(lambda kernel: _convolved(x, kernel, pads=pads, dilation=dilation), zeros)
        return pull(gradient)[0]

    if shape[3] < _FEW_OUTPUT_CHANNELS:
        return plain(x, gradient)

    def on_cpu(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
        if tile is not None:
            return (winograd.kernel_gradient(x, gradient, pads=pads, tile=tile),)
        return (_kernel_gradient_by_patches(x, gradient, shape, pads, dilation),)

    sharded = batch_shard_map(on_cpu, ("batch", "batch"), ("replicated",))
    return per_platform(x, gradient, cpu=lambda *a: sharded(*a)[0], default=plain)


def _convolved(
    x: jax.Array,
    kernel: jax.Array,
    *,
    stride: int = 1,
    pads: Pads | Literal["VALID"] = "VALID",
    dilation: int = 1,
    groups: int = 1,
) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        pads,
        rhs_dilation=(dilation, dilation),
        dimension_numbers=_DIMENSIONS,
        feature_group_count=groups,
    )


def _kernel_gradient_by_patches(
    x: jax.Array, gradient: jax.Array, kernel_shape: tuple[int, ...], pads: Pads, dilation: int
) -> jax.Array:
    """Sums products of gradients and patches over blocks of images, or of rows of one image."""
    kh, kw, channels, depth = kernel_shape
    # Offsets of the taps of a row and of a column.
    down, right = (range(0, taps * dilation, dilation) for taps in (kh, kw))
    batch, height, width, _ = gradient.shape
    images, rows = _block(batch, height, width, math.prod(kernel_shape[:3]) * x.dtype.itemsize)
    row_blocks = -(-height // rows)
    # Padding rows of the last block have a gradient of 0.
    fill = row_blocks * rows - height
    padded = pad(to_bits(x), ((pads[0][0], pads[0][1] + fill), pads[1]))
    above = pad(to_bits(gradient), ((0, fill), (0, 0)))

    def add(total: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
        start = (index // row_blocks * images, index % row_blocks * rows, 0, 0)
        size = (images, rows + down[-1], width + right[-1], channels)
        seen = from_bits(jax.lax.dynamic_slice(padded, start, size), x.dtype)
        part = jax.lax.dynamic_slice(above, start, (images, rows, width, depth))
        windows = [seen[:, i : i + rows, j : j + width] for i in down for j in right]
        patches = jnp.concatenate(windows, axis=-1).reshape(-1, kh * kw * channels)
        return total + product(transposed(flat(from_bits(part, x.dtype))), patches), None

    start = jnp.zeros((depth, kh * kw * channels), jnp.float32)
    total, _ = jax.lax.scan(add, start, jnp.arange(batch // images * row_blocks))
    return total.T.reshape(kernel_shape).astype(x.dtype)


def _block(batch: int, height: int, width: int, bytes_of_patch: int) -> tuple[int, int]:
    """Returns images and rows of a block of patches; rows of one image if it exceeds the limit."""
    of_image = height * width * bytes_of_patch
    if of_image > _PATCH_BYTES:
        blocks = -(-of_image // _PATCH_BYTES)
        return 1, -(-height // min(blocks, height))
    fitting = (n for n in range(batch, 0, -1) if batch % n == 0 and n * of_image <= _PATCH_BYTES)
    return next(fitting, 1), height


# Inputs of at most so many channels are scaled and summed: a matrix product needs longer rows.
_FEW_INPUT_CHANNELS = 4
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
    prepared: Callable[[Tile], Transformed] | None = None,
) -> jax.Array:
    """Convolves all channels of `[B, H, W, C]` with a kernel `[kh, kw, C, D]` of the same type.

    `dilation` is the distance of the kernel's taps in pixels; above 1, the stride has to be 1.
    `prepared` returns the kernel transformed for a tile, if it does not change from call to call.

    Returns:
        `[B, ceil(H / stride), ceil(W / stride), D]` of the same type; smaller without padding.
    """
    x = without_uneven_shards(x)
    pads = padding_pairs(x.shape, kernel.shape, stride, padding, dilation)
    if stride == 1 and kernel.shape[:2] != (1, 1):
        tiles = Tiles()
        if dilation == 1:
            size = output_size(x.shape, kernel.shape, pads)
            # Outside of `conv_unstrided`: its custom derivative is traced with arrays of its own.
            if prepared is not None and (tile := inference_tile(kernel.shape, size, x.dtype)):
                return convolve_transformed(x, prepared(tile), pads=pads, tile=tile)
            tiles = choose_tiles(kernel.shape, size, x.dtype)
        # Not in a call: there XLA's CPU backend compiles convolutions to a scalar loop, a hundred
        # times slower.
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
    if kernel.shape[2] <= _FEW_INPUT_CHANNELS:
        return taps <= _FEW_TAPS
    return taps == 1 or kernel.dtype != jnp.float32


def _depthwise(padded: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    return _convolved(padded, kernel.swapaxes(2, 3), stride=stride, groups=padded.shape[-1])


def _conv_on_cpu(padded: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    windows = windows_of(padded, kernel.shape, stride)
    if kernel.shape[2] <= _FEW_INPUT_CHANNELS:
        return _sum_of_scaled(windows, kernel)
    patches = jnp.concatenate(windows, axis=-1)
    # Not `product`: XLA fuses consumers only with a result without a fixed layout.
    flat_result = jnp.matmul(flat(patches), flat(kernel), preferred_element_type=jnp.float32)
    return flat_result.reshape(*patches.shape[:3], -1).astype(padded.dtype)


def _conv_gradients_on_cpu(
    padded: jax.Array, kernel: jax.Array, gradient: jax.Array, *, stride: int, pads: Pads
) -> Gradients:
    if kernel.shape[2] <= _FEW_INPUT_CHANNELS:
        taps = _kernel_gradient_by_image(padded, gradient, kernel.shape, stride)
    else:
        windows = windows_of(padded, kernel.shape, stride)
        # One product for each tap avoids a copy of the patches.
        taps = jnp.stack([outer_products(flat(window), flat(gradient)) for window in windows])
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
        on_cpu: its CPU form; None: the plain one, outside of any call.
        gradients_on_cpu: maps padded input, kernel and gradient to the gradients of the input
            without padding and of the kernel.
    """

    @partial(jax.custom_vjp, nondiff_argnums=(2, 3))
    def convolve(x: jax.Array, kernel: jax.Array, stride: int, pads: Pads) -> jax.Array:
        return forward(x, kernel, stride, pads)[0]

    def forward(
        x: jax.Array, kernel: jax.Array, stride: int, pads: Pads
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        # Outside of the call the padding is fused with the operation that computes x.
        padded = pad(x, pads)
        default = partial(plain, stride=stride)
        if on_cpu is None:
            return default(padded, kernel), (padded, kernel)
        sharded = batch_shard_map(
            no_inline(on_cpu, stride=stride), ("batch", "replicated"), "batch"
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
            no_inline(gradients_on_cpu, stride=stride, pads=pads),
            ("batch", "replicated", "batch"),
            ("batch", "replicated"),
        )
        return per_platform(*saved, gradient, cpu=sharded, default=default)

    convolve.defvjp(forward, backward)
    return convolve


_conv_by_products = _per_platform(_convolved, _conv_on_cpu, _conv_gradients_on_cpu)
_conv_by_xla = _per_platform(_convolved, None, _conv_gradients_on_cpu)
_depthwise_conv = _per_platform(_depthwise, windows.convolve_depthwise, windows.depthwise_gradients)
