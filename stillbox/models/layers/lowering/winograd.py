"""3x3 convolutions without stride on CPUs as products of matrices (Winograd), and their choice.

An output tile of `m` x `m` pixels depends on `t` x `t` pixels of the input, `t = m + 2`. After
transformations of tile and kernel, the convolution of a tile is an elementwise product, summed
over the channels: one product of matrices for each of the `t * t` positions. Tiles of 4 need 36
multiplications in place of 144, tiles of 2 need 16 in place of 36 (A. Lavin and S. Gray, *Fast
Algorithms for Convolutional Neural Networks*, CVPR 2016).

The kernel gradient is the same algorithm with the roles exchanged. The input gradient is a
convolution with the rotated, transposed kernel.

The rows of all tiles are transformed first, then their columns. Arrays hold all rows of a tile,
so XLA compiles `t` operations a transform in place of `t * t`. A loop takes as many images at a
time as the cache holds: 8 images of 38 x 38 x 256 run at 370 GFLOP/s at once and at 800 in pairs.

The shape of a convolution decides its algorithm. `benchmarks/convolutions.py` measures the
algorithms; the limits are those at which Winograd's began to be faster than XLA's convolution on
two CPUs with AVX-512, with and without AMX.

Training transforms its kernels in each step. In inference they do not change: one program
transforms all kernels once, and another one takes the results, `PreparedKernels`, as an argument.
"""

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from stillbox.lowering import current_lowering
from stillbox.models.layers.lowering.windows import Pads, output_size, pad

Tile = Literal[2, 4]
"""Rows and columns of an output tile, m."""

_CACHE_BYTES = 16 * 2**20

Matrix = tuple[tuple[float, ...], ...]

# Transforms of input (B transposed), kernel (G) and output (A transposed), as in the paper.
_INPUT: dict[int, Matrix] = {
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    4: (
        (4, 0, -5, 0, 1, 0),
        (0, -4, -4, 1, 1, 0),
        (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 2, -1, -2, 1, 0),
        (0, 4, 0, -5, 0, 1),
    ),
}
_KERNEL: dict[int, Matrix] = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
_OUTPUT: dict[int, Matrix] = {
    2: ((1, 1, 1, 0), (0, 1, -1, -1)),
    4: (
        (1, 1, 1, 1, 1, 0),
        (0, 1, -1, 2, -2, 0),
        (0, 1, 1, 4, 4, 0),
        (0, 1, -1, 8, -8, 1),
    ),
}


def convolve(x: jax.Array, kernel: jax.Array, *, pads: Pads, tile: Tile) -> jax.Array:
    """Convolves `[B, H, W, C]` with `[3, 3, C, D]` to `[B, H', W', D]`, all of x's type.

    Products are of x's type with float32 sums; transforms are computed in float32.
    """
    return convolve_transformed(x, transform_kernel(kernel, tile), pads=pads, tile=tile)


# Traced and lowered once for all layers of a shape; XLA inlines the calls.
@partial(jax.jit, static_argnames="tile")
def transform_kernel(kernel: jax.Array, tile: Tile) -> list[jax.Array]:
    """Returns the transform of a kernel `[3, 3, C, D]` for each column of a tile, `[t, C, D]`."""
    return _kept([a.astype(kernel.dtype) for a in _kernel_tiles(kernel, tile)])


@partial(jax.jit, static_argnames=("pads", "tile"))
def convolve_transformed(
    x: jax.Array, kernels: list[jax.Array], *, pads: Pads, tile: Tile
) -> jax.Array:
    """Returns `convolve` with the result of `transform_kernel`."""
    height, width = output_size(x.shape, (3, 3), pads)

    def convolved(x: jax.Array) -> jax.Array:
        seen = _kept([a.astype(x.dtype) for a in _input_tiles(x, pads, (height, width), tile)])
        products = [_product(a, b) for a, b in zip(seen, kernels, strict=True)]
        return _image(products, tile)[:, :height, :width].astype(x.dtype)

    channels = sum(kernels[0].shape[1:])
    images = _images_at_a_time(x.shape[0], (height, width), channels, tile)
    if images == x.shape[0]:
        return convolved(x)
    y = jax.lax.map(convolved, x.reshape(-1, images, *x.shape[1:]))
    return y.reshape(-1, *y.shape[2:])


def rotated(kernel: jax.Array) -> jax.Array:
    """Returns the kernel `[3, 3, D, C]` that convolves output gradients to input gradients."""
    # The transforms read it several times, and slowly while it is transposed.
    turned: jax.Array = jax.lax.optimization_barrier(jnp.flip(kernel, (0, 1)).swapaxes(2, 3))
    return turned


@partial(jax.jit, static_argnames=("pads", "tile"))
def kernel_gradient(x: jax.Array, gradient: jax.Array, *, pads: Pads, tile: Tile) -> jax.Array:
    """Returns the gradient `[3, 3, C, D]` of the kernel, of x's type, computed in float32.

    `x` is the input `[B, H, W, C]`, `gradient` the gradient of the output, `[B, H', W', D]`.
    """
    batch, *size, depth = gradient.shape
    back = _transposed(_KERNEL[tile])

    def add(total: jax.Array, arrays: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        seen = _kept(_input_tiles(arrays[0], pads, (size[0], size[1]), tile))
        gradients = _kept(_gradient_tiles(arrays[1], tile))
        products = [_outer_product(a, b) for a, b in zip(seen, gradients, strict=True)]
        columns = _stacked(_combined(back, products))  # [3, t, C, D]
        rows = _combined(back, [columns[:, row] for row in range(tile + 2)])
        return total + jnp.stack(rows), None

    channels = x.shape[-1]
    images = _images_at_a_time(batch, (size[0], size[1]), channels + depth, tile)
    start = jnp.zeros((3, 3, channels, depth), jnp.float32)
    groups = [array.reshape(-1, images, *array.shape[1:]) for array in (x, gradient)]
    total, _ = jax.lax.scan(add, start, (groups[0], groups[1]))
    return total.astype(x.dtype)


def _images_at_a_time(batch: int, size: tuple[int, int], channels: int, tile: int) -> int:
    """Returns a divisor of the batch: images with transforms that the cache holds, at least one.

    `size` are rows and columns of the output, `channels` of input and output together.
    """
    tiles = -(-size[0] // tile) * -(-size[1] // tile)
    most = _CACHE_BYTES // (tiles * (tile + 2) ** 2 * channels * 4)
    return next(n for n in range(batch, 0, -1) if batch % n == 0 and n <= max(most, 1))


def _input_tiles(x: jax.Array, pads: Pads, size: tuple[int, ...], tile: int) -> list[jax.Array]:
    """Returns the transformed input for each column of a tile, `[t, B, h, w, C]` float32.

    `h` and `w` are the numbers of tiles that cover `size`, rows and columns of the output.
    """
    counts = [-(-length // tile) for length in size]
    fill = [
        (before, count * tile + 2 - before - length)
        for count, length, (before, _) in zip(counts, x.shape[1:3], pads, strict=True)
    ]
    padded = pad(x.astype(jnp.float32), (fill[0], fill[1]))
    spans = [[slice(at, at + (n - 1) * tile + 1, tile) for at in range(tile + 2)] for n in counts]
    rows = _stacked(_combined(_INPUT[tile], [padded[:, span] for span in spans[0]]))
    return _combined(_INPUT[tile], [rows[:, :, :, span] for span in spans[1]])


def _gradient_tiles(gradient: jax.Array, tile: int) -> list[jax.Array]:
    """Returns the transformed gradient for each column of a tile, `[t, B, h, w, D]` float32."""
    fill = [(0, -length % tile) for length in gradient.shape[1:3]]
    padded = pad(gradient.astype(jnp.float32), (fill[0], fill[1]))
    matrix = _transposed(_OUTPUT[tile])
    rows = _stacked(_combined(matrix, [padded[:, at::tile] for at in range(tile)]))
    return _combined(matrix, [rows[:, :, :, at::tile] for at in range(tile)])


def _kernel_tiles(kernel: jax.Array, tile: int) -> list[jax.Array]:
    """Returns the transformed kernel for each column of a tile, `[t, C, D]` float32."""
    taps = kernel.astype(jnp.float32)
    rows = _stacked(_combined(_KERNEL[tile], [taps[row] for row in range(3)]))
    return _combined(_KERNEL[tile], [rows[:, column] for column in range(3)])


def _image(products: list[jax.Array], tile: int) -> jax.Array:
    """Returns the image `[B, h * m, w * m, D]` of the products `[t, B, h, w, D]` of each column."""
    # Joined along the channels, where whole runs of memory are copied.
    columns = jnp.concatenate(_kept(_combined(_OUTPUT[tile], products)), axis=-1)
    lines = _combined(_OUTPUT[tile], [columns[row] for row in range(tile + 2)])
    batch, rows, tiles, length = lines[0].shape
    joined = jnp.concatenate([line.reshape(batch, rows, -1) for line in _kept(lines)], axis=-1)
    return joined.reshape(batch, rows * tile, tiles * tile, length // tile)


def _combined(matrix: Matrix, arrays: list[jax.Array]) -> list[jax.Array]:
    """Returns the sum of the arrays, multiplied by the factors of a row, for each row."""
    return [_sum_of_multiples(row, arrays) for row in matrix]


def _sum_of_multiples(factors: tuple[float, ...], arrays: list[jax.Array]) -> jax.Array:
    terms = [
        array if factor == 1 else array * np.float32(factor)
        for factor, array in zip(factors, arrays, strict=True)
        if factor
    ]
    return sum(terms[1:], start=terms[0])


def _stacked(arrays: list[jax.Array]) -> jax.Array:
    return jnp.stack(_kept(arrays))


def _kept(arrays: list[jax.Array]) -> list[jax.Array]:
    """Prevents XLA from computing arrays again in each of their consumers."""
    kept: list[jax.Array] = jax.lax.optimization_barrier(arrays)
    return kept


def _transposed(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


def _product(tiles: jax.Array, kernels: jax.Array) -> jax.Array:
    """Multiplies `[t, B, h, w, C]` by `[t, C, D]` to `[t, B, h, w, D]`, float32."""
    flat = tiles.reshape(tiles.shape[0], -1, tiles.shape[-1])
    product = jnp.matmul(flat, kernels, preferred_element_type=jnp.float32)
    return product.reshape(*tiles.shape[:-1], -1)


def _outer_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Sums outer products of `[t, B, h, w, C]` and `[t, B, h, w, D]` to `[t, C, D]`."""
    flat = [array.reshape(array.shape[0], -1, array.shape[-1]) for array in (a, b)]
    return jnp.matmul(flat[0].swapaxes(1, 2), flat[1])


# Fewer channels make the products too narrow for what the transforms cost.
_LEAST_CHANNELS = 64
# Rows and columns of an output below which too much of the tiles is padding.
_LEAST_SIZE = {2: 8, 4: 16}


class Tiles(NamedTuple):
    """Tile of Winograd's algorithm for each pass of a convolution; None: another algorithm."""

    forward: Tile | None = None
    input_gradient: Tile | None = None
    kernel_gradient: Tile | None = None


def choose_tiles(
    kernel_shape: tuple[int, ...],
    size: tuple[int, int],
    dtype: DTypeLike,
) -> Tiles:
    """Returns the tiles of a convolution without stride and dilation.

    `kernel_shape` is `(kh, kw, C, D)`, `size` are rows and columns of the output, and `dtype` is
    of input and kernel.
    """
    wide, narrow = _fitting_tiles(kernel_shape, size)
    if jnp.dtype(dtype) == jnp.float32:
        return Tiles(wide, wide, wide or narrow)
    # Products of tiles of 4 lose two more decimal digits than bfloat16 can spare. The kernel
    # gradient multiplies in float32.
    return Tiles(narrow, narrow if wide else None, wide or narrow)


def inference_tile(
    kernel_shape: tuple[int, ...],
    size: tuple[int, int],
    dtype: DTypeLike,
) -> Tile | None:
    """Returns the tile of a convolution by a prepared kernel; arguments as `choose_tiles`.

    Tiles pay on smaller maps than in training, since the transform of the kernel costs nothing:
    10 x 10 x 512 takes 2.6 ms in place of 4.5.
    """
    wide, narrow = _fitting_tiles(kernel_shape, size)
    return wide or narrow if jnp.dtype(dtype) == jnp.float32 else narrow


def has_fitting_shape(kernel_shape: tuple[int, ...]) -> bool:
    """Returns whether a kernel may be transformed, if its maps are large enough."""
    return kernel_shape[:2] == (3, 3) and min(kernel_shape[2:]) >= _LEAST_CHANNELS


def _fitting_tiles(
    kernel_shape: tuple[int, ...], size: tuple[int, int]
) -> tuple[Tile | None, Tile | None]:
    """Returns tiles of 4 and of 2; None for those that are not allowed or do not pay."""
    if current_lowering().cpu_convolutions == "exact" or not has_fitting_shape(kernel_shape):
        return None, None
    least = min(size)
    return 4 if least >= _LEAST_SIZE[4] else None, 2 if least >= _LEAST_SIZE[2] else None


Transformed = list[jax.Array]
"""See `winograd.transform_kernel`."""


PreparedKernels = OrderedDict[tuple[str, int, Tile], Transformed]
"""By the path of the layer, the number of the map that a rounded kernel is for, and the tile.

JAX would sort the keys of a plain dictionary. In the order of the layers the arguments of programs
stay the same, and so do compiled programs that are kept.
"""


@dataclass(frozen=True, eq=False)
class LayerKernels:
    """The prepared kernels of one layer."""

    path: str
    """Path of the layer."""
    prepared: PreparedKernels
    """Kernels of all layers."""

    def transformed(self, kernel: jax.Array, tile: Tile, *, use: int) -> Transformed:
        """Returns a prepared kernel, which is added if it is missing."""
        key = self.path, use, tile
        if key not in self.prepared:
            self.prepared[key] = transform_kernel(kernel, tile)
        return self.prepared[key]
