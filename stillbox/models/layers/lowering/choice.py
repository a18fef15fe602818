"""Choice of the algorithm of a 3x3 convolution on CPUs, by its shape.

`benchmarks/convolutions.py` measures the algorithms; the limits below are those at which Winograd's
began to be faster than XLA's convolution on two CPUs with AVX-512, with and without AMX.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from stillbox.models.layers.lowering.winograd import Tile

CpuConvolutions = Literal["exact", "fast"]

_ALLOWED: ContextVar[CpuConvolutions] = ContextVar("cpu_convolutions", default="exact")

# Fewer channels make the products too narrow for what the transforms cost.
_LEAST_CHANNELS = 64
# Rows and columns of an output, below which too much of the tiles is padding.
_LEAST_SIZE = {2: 8, 4: 16}


class Tiles(NamedTuple):
    """Tile of Winograd's algorithm for each pass of a convolution; None: another algorithm."""

    forward: Tile | None = None
    input_gradient: Tile | None = None
    kernel_gradient: Tile | None = None


@contextmanager
def cpu_convolutions(allowed: CpuConvolutions) -> Iterator[None]:
    """Traces programs inside it with the algorithms of `devices.cpu_convolutions`.

    Outside of it they are `exact`.
    """
    token = _ALLOWED.set(allowed)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def choose_tiles(
    kernel_shape: tuple[int, ...],
    size: tuple[int, int],
    dtype: Any,  # noqa: ANN401
) -> Tiles:
    """Returns the tiles of a convolution without stride and dilation.

    Args:
        kernel_shape: `(kh, kw, C, D)`.
        size: rows and columns of the output.
        dtype: of input and kernel.
    """
    wide, narrow = _fitting_tiles(kernel_shape, size)
    if jnp.dtype(dtype) == jnp.float32:
        return Tiles(wide, wide, wide or narrow)
    # Products of tiles of 4 lose two decimal digits more than bfloat16 has to lose. Those of the
    # kernel gradient are of float32.
    return Tiles(narrow, narrow if wide else None, wide or narrow)


def inference_tile(
    kernel_shape: tuple[int, ...],
    size: tuple[int, int],
    dtype: Any,  # noqa: ANN401
) -> Tile | None:
    """Returns the tile of a convolution by a kernel that is transformed beforehand.

    Smaller maps than in training are worth tiles, since the transform of the kernel costs nothing:
    10 x 10 x 512 takes 2.6 ms in place of 4.5. The arguments are those of `choose_tiles`.
    """
    wide, narrow = _fitting_tiles(kernel_shape, size)
    return wide or narrow if jnp.dtype(dtype) == jnp.float32 else narrow


def _fitting_tiles(
    kernel_shape: tuple[int, ...], size: tuple[int, int]
) -> tuple[Tile | None, Tile | None]:
    """Returns tiles of 4 and of 2; None for those that are not allowed or do not pay."""
    fits = kernel_shape[:2] == (3, 3) and min(kernel_shape[2:]) >= _LEAST_CHANNELS
    if _ALLOWED.get() == "exact" or not fits:
        return None, None
    least = min(size)
    return 4 if least >= _LEAST_SIZE[4] else None, 2 if least >= _LEAST_SIZE[2] else None
