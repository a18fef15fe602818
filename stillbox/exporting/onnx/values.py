"""What stands for an array of a JAX program while it is written as an ONNX graph.

Some operations are put off until it is known what follows: a padding becomes part of its
convolution, and so do the factors and offsets of a batch norm.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Order = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Known:
    """A constant. An axis of length 1 may stand for a longer one along which nothing changes."""

    array: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the graph; its axes may stand in another order than the program's."""

    name: str
    order: Order
    """For each axis of the tensor, which axis of the program's array it is."""


@dataclass(frozen=True, eq=False)
class Padded:
    """An array with a border, not yet in the graph."""

    source: "Value"
    pads: tuple[tuple[int, int], ...]
    """Before and after, for every axis of the program's array."""
    value: float


@dataclass(frozen=True, eq=False)
class Clipped:
    """An array with its values held in a range, not yet in the graph."""

    source: "Value"
    low: float = -np.inf
    high: float = np.inf


@dataclass(frozen=True, eq=False)
class Repeated:
    """An array with new axes, or axes of length 1 made longer, not yet in the graph."""

    source: "Value"
    axes: tuple[int, ...]
    """For each axis of the source, which axis of the result it is."""
    shape: tuple[int, ...]
    longer: bool
    """Whether any axis is longer than before, or a new one longer than 1."""


@dataclass(frozen=True, eq=False)
class Convolved:
    """A convolution with a factor and an offset for each channel, not yet in the graph."""

    source: Tensor
    """The input, in the order N, C, H, W."""
    kernel: Known
    """As it stands in the program."""
    kernel_order: Order
    """What makes O, I, H, W of it."""
    order: Order
    """Of the output."""
    attributes: dict[str, Any]
    factor: NDArray[np.float64]
    """`[O]`."""
    offset: NDArray[np.float64]
    """`[O]`."""


Value = Known | Tensor | Padded | Clipped | Repeated | Convolved


def identity(rank: int) -> Order:
    """Returns the order in which nothing is moved."""
    return tuple(range(rank))


def by_channel(value: Known, channels: int, axis: int) -> NDArray[np.float64] | None:
    """Returns a constant as numbers for each channel `[channels]`; None where it is more than that.

    Args:
        value: the constant.
        channels: how many there are.
        axis: of the channels in the program's array.
    """
    array = value.array
    if array.size == 1:
        return np.full(channels, array.reshape(()), np.float64)
    if array.size == channels and array.ndim > axis and array.shape[axis] == channels:
        return array.reshape(channels).astype(np.float64)
    return None
