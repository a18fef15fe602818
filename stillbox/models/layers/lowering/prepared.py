"""Kernels of convolutions that inference transforms once, not for every batch.

Training changes its kernels in each step, and transforms them in each step. The weights of
inference do not change: `collected_kernels` traces a program that transforms all kernels, and
`given_kernels` the program that takes the results as arguments. Both trace the same convolutions in
the same order.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import jax

from stillbox.models.layers.lowering.choice import inference_tile
from stillbox.models.layers.lowering.padding import Pads, output_size
from stillbox.models.layers.lowering.winograd import (
    Tile,
    convolve_transformed,
    transform_kernel,
)

Transformed = list[jax.Array]
"""See `winograd.transform_kernel`."""


class _Kernels:
    """Transformed kernels in the order in which convolutions first need them.

    Args:
        given: all of them; None: they are computed.
    """

    def __init__(self, given: Sequence[Transformed] | None = None) -> None:
        self._given = given
        # Kernels are kept, so that no other has the same identity.
        self._numbers: dict[tuple[int, Tile], tuple[int, jax.Array]] = {}
        self.collected: list[Transformed] = []

    def transformed(self, kernel: jax.Array, tile: Tile) -> Transformed:
        """Returns a transformed kernel, the same one for each use of a shared kernel."""
        number, _ = self._numbers.setdefault((id(kernel), tile), (len(self._numbers), kernel))
        if self._given is not None:
            return self._given[number]
        if number == len(self.collected):
            self.collected.append(transform_kernel(kernel, tile))
        return self.collected[number]


_KERNELS: ContextVar[_Kernels | None] = ContextVar("prepared_kernels", default=None)


@contextmanager
def collected_kernels() -> Iterator[list[Transformed]]:
    """Traces convolutions inside it and fills the list with the kernels that they need."""
    with _source(_Kernels()) as kernels:
        yield kernels.collected


@contextmanager
def given_kernels(kernels: Sequence[Transformed]) -> Iterator[None]:
    """Traces convolutions inside it with the kernels of `collected_kernels`."""
    with _source(_Kernels(kernels)):
        yield


@contextmanager
def _source(kernels: _Kernels) -> Iterator[_Kernels]:
    token = _KERNELS.set(kernels)
    try:
        yield kernels
    finally:
        _KERNELS.reset(token)


def convolve_prepared(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array | None:
    """Convolves `[B, H, W, C]` without stride by a kernel that is prepared.

    Returns:
        `[B, H', W', D]` of x's type; None: no kernels are prepared, or another algorithm is faster.
    """
    kernels = _KERNELS.get()
    if kernels is None:
        return None
    tile = inference_tile(kernel.shape, output_size(x.shape, kernel.shape, pads), x.dtype)
    if tile is None:
        return None
    return convolve_transformed(x, kernels.transformed(kernel, tile), pads=pads, tile=tile)
