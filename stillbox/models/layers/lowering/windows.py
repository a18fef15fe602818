"""Padding in pixels, windows of an image, products of matrices, and depthwise convolutions.

Products of matrices have float32 sums, in the layouts in which XLA's CPU backend is fast. XLA folds
a transposition into a product where it can. A CPU's bfloat16 instructions need contiguous rows, and
are slow after a folded transposition: the kernel gradient of a 1x1 convolution takes two to four
times as long. Float32 is equally fast either way.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from stillbox.errors import UserError
from stillbox.jax_internals import Layout, with_layout_constraint
from stillbox.models.layers.lowering.primitives import fold_rows, from_bits, sum_by_product, to_bits

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
    """Returns the pixels that a convolution or pooling adds on each side.

    `image_shape` is `[B, H, W, C]`; `kernel_shape` begins with height and width; `dilation` is the
    distance of the kernel's taps.

    Raises:
        UserError: no window of a layer without padding fits into the image.
    """
    pairs = [
        _pair(side, (taps - 1) * dilation + 1, stride, padding)
        for side, taps in zip(image_shape[1:3], kernel_shape[:2], strict=True)
    ]
    return pairs[0], pairs[1]


def output_size(
    image_shape: tuple[int, ...], kernel_shape: tuple[int, ...], pads: Pads
) -> tuple[int, int]:
    """Returns rows and columns of a convolution without stride and dilation.

    `image_shape` is `[B, H, W, C]` without padding; `kernel_shape` begins with height and width.
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
    """Returns the padding with which the rotated kernel convolves an output's gradient.

    The result is the gradient of the input, if the stride is 1.
    """
    rows, columns = (
        (taps - 1 - before, taps - 1 - after)
        for taps, (before, after) in zip(kernel_shape[:2], pads, strict=True)
    )
    return rows, columns


def _pair(side: int, taps: int, stride: int, padding: Padding) -> Pair:
    if padding == "valid":
        if taps > side:
            raise UserError(
                f"a layer without padding reads {taps} rows and columns, and its map has {side}",
                where="model",
                fix="take a larger network input (model.resizer) or crop, or fewer layers",
            )
        return 0, 0
    if padding == "symmetric":
        return (taps - 1) // 2, taps // 2
    total = max((-(-side // stride) - 1) * stride + taps - side, 0)
    return total // 2, total - total // 2


def windows_of(padded: jax.Array, kernel_shape: Sequence[int], stride: int) -> list[jax.Array]:
    """Returns for each tap the values of `[B, H, W, C]` that it multiplies, `[B, h, w, C]`.

    `kernel_shape` is `(kh, kw, ...)`; taps are in the order of rows.
    """
    spans = [
        [slice(tap, padded.shape[axis + 1] - taps + tap + 1, stride) for tap in range(taps)]
        for axis, taps in enumerate(kernel_shape[:2])
    ]
    return [padded[:, rows, columns] for rows in spans[0] for columns in spans[1]]


def patch_rows(padded: jax.Array, kernel_shape: Sequence[int], stride: int) -> jax.Array:
    """Returns what each tap multiplies in each channel of an image, `[kh * kw * C, h * w]`.

    Pixels with the same remainders of row and column by the stride are gathered first, which makes
    the windows contiguous.

    Args:
        padded: an image of few channels, `[H, W, C]`.
        kernel_shape: `(kh, kw, ...)`; rows of the result are in the order of these axes.
        stride: of the kernel.
    """
    kh, kw = kernel_shape[:2]
    height, width = (padded.shape[0] - kh) // stride + 1, (padded.shape[1] - kw) // stride + 1
    channels_first = jax.lax.optimization_barrier(padded.transpose(2, 0, 1))
    phases = jax.lax.optimization_barrier(
        [
            [channels_first[:, row::stride, column::stride] for column in range(min(stride, kw))]
            for row in range(min(stride, kh))
        ]
    )

    def rows_of(down: int, right: int) -> jax.Array:
        above, left = down // stride, right // stride
        phase = phases[down % stride][right % stride]
        return phase[:, above : above + height, left : left + width].reshape(len(phase), -1)

    rows = jnp.concatenate([rows_of(down, right) for down in range(kh) for right in range(kw)])
    kept: jax.Array = jax.lax.optimization_barrier(rows)
    return kept


def added_up(patches: jax.Array, size: tuple[int, ...], stride: int) -> jax.Array:
    """Adds patches `[B, h, w, kh, kw, C]` at the places that `windows_of` takes them from.

    Pixels with the same remainders of row and column by the stride belong to the same taps, so the
    sum is elementwise over `[B, H / stride, stride, W / stride, stride, C]`, and XLA fuses it with
    the computation of the patches. JAX's gradient writes every window into a separate image.

    Returns:
        `[B, H, W, C]` of the patches' type, H and W being `size`.
    """
    batch, height, width, *taps, channels = patches.shape
    rows, columns = (-(-side // stride) for side in size)

    def shifted(down: int, right: int) -> jax.Array:
        """Returns the taps that are so many strides below and right of the first one."""
        first, second = (slice(n * stride, (n + 1) * stride) for n in (down, right))
        part = patches[:, :, :, first, second]
        moved = (down, rows - down - height), (right, columns - right - width)
        missing = ((0, stride - count) for count in part.shape[3:5])
        return jnp.pad(part, ((0, 0), *moved, *missing, (0, 0))).transpose(0, 1, 3, 2, 4, 5)

    shifts = [range(-(-count // stride)) for count in taps]
    total = sum(shifted(down, right) for down in shifts[0] for right in shifts[1])
    image = jnp.reshape(total, (batch, rows * stride, columns * stride, channels))
    return image[:, : size[0], : size[1]]


_BY_ROWS = Layout(major_to_minor=(0, 1))
# Larger maps are read once for all taps of a kernel, and of a larger kernel once for each row.
_CACHED_BYTES, _MOST_TAPS = 12 * 2**20, 9


def flat(x: jax.Array) -> jax.Array:
    """Returns `[..., C]` as a matrix: a product is only fast on a CPU as one of two matrices."""
    return x.reshape(-1, x.shape[-1])


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiplies `[M, K]` by `[K, N]` of the same type to `[M, N]`, float32, stored by rows.

    XLA would choose the layout by the consumers, and has no product of bfloat16 with float32 sums
    that stores its result by columns.
    """
    return _by_rows(jnp.matmul(a, b, preferred_element_type=jnp.float32))


def outer_products(a: jax.Array, b: jax.Array) -> jax.Array:
    """Sums the outer products of the rows of `[M, C]` and `[M, D]` of the same type, `[C, D]`.

    The narrower one is transposed: 4.5 ms in place of 7.0 for 5,776 rows of 576 and 96 float32.
    """
    if a.shape[1] <= b.shape[1]:
        return product(transposed(a), b)
    return product(transposed(b), a).T


def transposed(a: jax.Array) -> jax.Array:
    """Transposes a matrix in memory."""
    return _by_rows(a.T)


def input_gradient(
    gradient: jax.Array, kernel: jax.Array, size: tuple[int, ...], stride: int
) -> jax.Array:
    """Returns the gradient of a convolution's padded input, as a product with its rows added up.

    Args:
        gradient: of the output, `[B, h, w, D]`.
        kernel: `[kh, kw, C, D]`.
        size: rows and columns H, W of the padded input.
        stride: of the kernel.

    Returns:
        `[B, H, W, C]` of the gradient's type.
    """
    # The patches stay float32: sums of bfloat16 take three times as long.
    patches = product(flat(gradient), transposed(flat(kernel)))
    patches = patches.reshape(*gradient.shape[:3], *kernel.shape[:3])
    return added_up(patches, size, stride).astype(gradient.dtype)


def _by_rows(a: jax.Array) -> jax.Array:
    laid_out: jax.Array = with_layout_constraint(a, _BY_ROWS)
    return laid_out


def convolve_depthwise(padded: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    """Convolves `[B, H, W, C]` without padding with `[k, k, C, 1]` of the same type."""
    return _sum_of_scaled(to_bits(padded), kernel, stride)


def depthwise_gradients(
    padded: jax.Array, kernel: jax.Array, gradient: jax.Array, *, stride: int, pads: Pads
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradients of `convolve_depthwise`: of the unpadded input and of the kernel."""
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
    """Sums products of gradients and the values that each tap multiplies, row by row.

    The taps are iterations of a loop, and XLA compiles its body once.
    """
    batch, height, width, channels = gradient.shape
    seen, above = to_bits(padded), to_bits(gradient)
    rows, columns = kernel_shape[:2]
    taps = jnp.asarray([(down, right) for down in range(rows) for right in range(columns)])
    groups = taps.reshape(-1, _taps_of_iteration(padded, rows, columns), 2)

    def row(source: jax.Array, index: jax.Array, first: jax.Array | int, step: int) -> jax.Array:
        shape = (batch, 1, (width - 1) * step + 1, channels)
        start = (0, index, first, 0)
        values = jax.lax.dynamic_slice(source, start, shape, allow_negative_indices=False)
        return from_bits(values[:, :, ::step], padded.dtype).astype(jnp.float32)

    def sums_of(group: jax.Array) -> jax.Array:
        def add(totals: list[jax.Array], index: jax.Array) -> list[jax.Array]:
            factors = row(above, index, 0, 1)
            return [
                total + row(seen, index * stride + down, right, stride) * factors
                for total, (down, right) in zip(totals, group, strict=True)
            ]

        totals = [jnp.zeros((batch, 1, width, channels), jnp.float32) for _ in group]
        return jnp.stack([sum_by_product(total) for total in fold_rows(add, totals, height)])

    return jax.lax.map(sums_of, groups).reshape(kernel_shape).astype(padded.dtype)


def _taps_of_iteration(padded: jax.Array, rows: int, columns: int) -> int:
    """Returns how many taps share a pass over the arrays: more where these exceed the cache.

    Nine at once over 8 x 80 x 80 x 144 take half the time of one after the other, and compile for
    three times as long.
    """
    if padded.nbytes <= _CACHED_BYTES:
        return 1
    return columns if rows * columns > _MOST_TAPS else rows * columns


def _sum_of_scaled(bits: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    # In float32 also for bfloat16, which a CPU would round after every single addition.
    scales = kernel.reshape(-1, kernel.shape[2]).astype(jnp.float32)
    windows = (
        from_bits(window, kernel.dtype).astype(jnp.float32)
        for window in windows_of(bits, kernel.shape, stride)
    )
    total = functools.reduce(operator.add, map(operator.mul, windows, scales))
    return total.astype(kernel.dtype)
