"""The arrays of a JAX program while it is written as an ONNX graph.

Some operations are deferred until the next one is known: a padding becomes part of its
convolution, and so do the factors and offsets of a batch norm.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.export import symbolic_shape
from numpy.typing import NDArray

Order = tuple[int, ...]

(BATCH,) = symbolic_shape("batch", constraints=["batch >= 1"])
"""The number of images, a free length in the shapes of a traced program."""


@dataclass(frozen=True, eq=False)
class Known:
    """A constant. An axis of length 1 may represent a longer one with equal values."""

    array: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the graph, whose axes may have another order than the program's."""

    name: str
    order: Order
    """For each axis of the tensor, its number in the program's array."""


@dataclass(frozen=True, eq=False)
class Padded:
    """An array with a border, not yet in the graph."""

    source: "Value"
    pads: tuple[tuple[int, int], ...]
    """Before and after, for every axis of the program's array."""
    value: float


@dataclass(frozen=True, eq=False)
class Clipped:
    """An array with its values clipped to a range, not yet in the graph."""

    source: "Value"
    low: float = -np.inf
    high: float = np.inf


@dataclass(frozen=True, eq=False)
class Repeated:
    """An array with new axes, or axes of length 1 made longer, not yet in the graph."""

    source: "Value"
    axes: tuple[int, ...]
    """For each axis of the source, its number in the result."""
    shape: tuple[int, ...]
    longer: bool
    """Whether any axis is longer than before, or a new one longer than 1."""


@dataclass(frozen=True, eq=False)
class Convolved:
    """A convolution with a factor and an offset for each channel, not yet in the graph."""

    source: Tensor
    """The input, in the order N, C, H, W."""
    kernel: Known
    """In the program's order."""
    kernel_order: Order
    """The axes O, I, H, W of the kernel."""
    order: Order
    """Of the output."""
    attributes: dict[str, Any]
    factor: NDArray[np.float64]
    """`[O]`."""
    offset: NDArray[np.float64]
    """`[O]`."""


Value = Known | Tensor | Padded | Clipped | Repeated | Convolved


def identity(rank: int) -> Order:
    """Returns the order that moves no axis."""
    return tuple(range(rank))


def fixed(shape: Any) -> Any:  # noqa: ANN401
    """Returns a shape, or a parameter of an operation, with 1 for free lengths."""
    if type(shape) is tuple:  # a named tuple has no lengths
        return tuple(map(fixed, shape))
    return 1 if isinstance(shape, type(BATCH)) else shape


def by_channel(value: Known, channels: int, axis: int) -> NDArray[np.float64] | None:
    """Returns a constant as `[channels]`; None if it varies along other axes than `axis`."""
    array = value.array
    if array.size == 1:
        return np.full(channels, array.reshape(()), np.float64)
    if array.size == channels and array.ndim > axis and array.shape[axis] == channels:
        return array.reshape(channels).astype(np.float64)
    return None
