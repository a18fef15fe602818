"""k x k convolutions without stride, with forms of their own for the CPU.

XLA's CPU backend has a fast convolution and gradient of the input; Winograd's algorithm is faster
still for 3x3 kernels, and in bfloat16. Its gradient of the kernel, which slides one image over
another, is two to four times slower. As a product of patches it is fast while the patches fit in
the cache. Measured on two cores for 8 images of 38 x 38 x 256 to 256 channels: 57 GFLOP/s as a
convolution, 154 with the patches of the whole batch, 220 image by image.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from stillbox.models.layers.lowering import winograd
from stillbox.models.layers.lowering.bits import from_bits, to_bits
from stillbox.models.layers.lowering.calls import per_platform
from stillbox.models.layers.lowering.choice import Tiles
from stillbox.models.layers.lowering.padding import Pads, pad, rotated_pads, unpad
from stillbox.models.layers.lowering.products import flat, input_gradient, product, transposed
from stillbox.models.parallel import batch_shard_map

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")
# Bytes of patches at a time, and output channels below which a product is too narrow.
_PATCH_BYTES = 16 * 2**20
_FEW_CHANNELS = 32
# Rows and columns up to which the input gradient of bfloat16 is a product: 2.6 ms in place of 7.0
# for 4 images of 10 x 10 x 512.
_SMALL_SIDE = 15


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def conv_unstrided(
    x: jax.Array, kernel: jax.Array, pads: Pads, dilation: int, tiles: Tiles
) -> jax.Array:
    """Convolves `[B, H, W, C]` with `[kh, kw, C, D]` of the same type to `[B, H', W', D]`.

    `dilation` is the distance of the kernel's taps in pixels. The convolutions of block 4 of a
    ResNet at stride 16 take a CPU as long with a distance of 2 as with 1 (`[1, 38, 50, 512]`).
    `tiles` are those of each pass on a CPU; none with a dilation.
    """
    plain = partial(_plain, pads=pads, dilation=dilation)
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
    form: dict[str, Any] = {"pads": pads, "dilation": dilation}
    return (
        _input_gradient(x, kernel, gradient, tile=tiles.input_gradient, **form),
        _kernel_gradient(x, kernel, gradient, tile=tiles.kernel_gradient, **form),
    )


conv_unstrided.defvjp(_forward, _backward)


def _input_gradient(
    x: jax.Array,
    kernel: jax.Array,
    gradient: jax.Array,
    *,
    pads: Pads,
    dilation: int,
    tile: winograd.Tile | None,
) -> jax.Array:
    def plain(kernel: jax.Array, gradient: jax.Array) -> jax.Array:
        zeros = jnp.zeros(x.shape, x.dtype)
        _, pull = jax.vjp(lambda x: _plain(x, kernel, pads=pads, dilation=dilation), zeros)
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
    *,
    pads: Pads,
    dilation: int,
    tile: winograd.Tile | None,
) -> jax.Array:
    shape = kernel.shape
    plain = partial(_plain_kernel_gradient, kernel_shape=shape, pads=pads, dilation=dilation)
    if shape[3] < _FEW_CHANNELS:
        return plain(x, gradient)

    def on_cpu(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
        if tile is not None:
            return (winograd.kernel_gradient(x, gradient, pads=pads, tile=tile),)
        blocks = _kernel_gradient_by_patches
        return (blocks(x, gradient, kernel_shape=shape, pads=pads, dilation=dilation),)

    sharded = batch_shard_map(on_cpu, ("batch", "batch"), ("replicated",))
    return per_platform(x, gradient, cpu=lambda *a: sharded(*a)[0], default=plain)


def _plain(x: jax.Array, kernel: jax.Array, *, pads: Pads, dilation: int) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (1, 1),
        pads,
        rhs_dilation=(dilation, dilation),
        dimension_numbers=_DIMENSIONS,
    )


def _plain_kernel_gradient(
    x: jax.Array, gradient: jax.Array, *, kernel_shape: tuple[int, ...], pads: Pads, dilation: int
) -> jax.Array:
    zeros = jnp.zeros(kernel_shape, x.dtype)
    _, pull = jax.vjp(lambda kernel: _plain(x, kernel, pads=pads, dilation=dilation), zeros)
    return pull(gradient)[0]


def _kernel_gradient_by_patches(
    x: jax.Array, gradient: jax.Array, *, kernel_shape: tuple[int, ...], pads: Pads, dilation: int
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
        own = jax.lax.dynamic_slice(above, start, (images, rows, width, depth))
        windows = [seen[:, i : i + rows, j : j + width] for i in down for j in right]
        patches = jnp.concatenate(windows, axis=-1).reshape(-1, kh * kw * channels)
        return total + product(transposed(flat(from_bits(own, x.dtype))), patches), None

    start = jnp.zeros((depth, kh * kw * channels), jnp.float32)
    total, _ = jax.lax.scan(add, start, jnp.arange(batch // images * row_blocks))
    return total.T.reshape(kernel_shape).astype(x.dtype)


def _block(batch: int, height: int, width: int, bytes_of_patch: int) -> tuple[int, int]:
    """Returns images per block of patches and rows per block; one image if it exceeds the limit."""
    of_image = height * width * bytes_of_patch
    if of_image > _PATCH_BYTES:
        blocks = -(-of_image // _PATCH_BYTES)
        return 1, -(-height // min(blocks, height))
    fitting = (n for n in range(batch, 0, -1) if batch % n == 0 and n * of_image <= _PATCH_BYTES)
    return next(fitting, 1), height
