"""The operations of a graph as the readers of weights see them, and values of constants alone.

An example of such a value is the factor of a batch norm.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from stillbox.checkpoints.array_files import ArrayEntry, LazyArrays

OperationKind = Literal[
    "convolution", "depthwise", "add", "subtract", "multiply", "divide", "root", "inverse_root",
    "absolute", "minimum", "norm", "same", "reshape", "pad", "size", "scores", "other",
]  # fmt: skip
"""`same` returns its first input, perhaps of another type; `size` returns the shape of its input,
and `scores` sigmoids or a softmax."""
MOST_OPERATIONS = 100_000
"""Real graphs have some thousands."""

# Operations between constants and a result; a factor is five.
_MOST_DEEP = 8
_WITH_TWO = ("add", "subtract", "multiply", "divide")
_WITH_ONE = ("same", "reshape", "root", "inverse_root")


class Operation(NamedTuple):
    """One operation of a graph; inputs and outputs are names of values."""

    name: str
    kind: OperationKind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    activated: bool = False
    """An activation is applied last."""
    epsilon: float = 0.0
    """The epsilon of a norm. A norm has the inputs x, gamma, beta, mean and variance. A convolution
    that a norm follows has x, kernel and the last four."""


class Constants:
    """The constants of a graph, and the results of arithmetic on them.

    Args:
        arrays: the constants by name.
        operations: those of the graph.
        producer: the place in `operations` of what computes a value.
    """

    def __init__(
        self,
        arrays: LazyArrays[ArrayEntry],
        operations: Sequence[Operation],
        producer: Mapping[str, int],
    ) -> None:
        self._arrays = arrays
        self._operations = operations
        self._producer = producer
        self._shapes: dict[str, tuple[int, ...] | None] = {}

    def stored(self, value: str) -> str | None:
        """Returns the constant that a value is, after conversions perhaps."""
        for _ in range(_MOST_DEEP):
            if value in self._arrays:
                return value
            operation = self._producer_of(value)
            if operation is None or operation.kind != "same" or not operation.inputs:
                return None
            value = operation.inputs[0]
        return None

    def shape(self, value: str, deep: int = 0) -> tuple[int, ...] | None:
        """Returns the shape of a value, or None if it depends on other things than constants."""
        if value in self._arrays:
            return self._arrays.shape(value)
        if value not in self._shapes:
            self._shapes[value] = None  # of what depends on itself
            operation = self._producer_of(value)
            if operation is not None and deep < _MOST_DEEP:
                self._shapes[value] = self._computed_shape(operation, deep + 1)
        return self._shapes[value]

    def read(self, value: str) -> np.ndarray:
        """Returns a value that has a shape, float64."""
        if value in self._arrays:
            return self._arrays[value].astype(np.float64)
        operation = self._operations[self._producer[value]]
        if operation.kind == "minimum":
            return self.read(operation.inputs[1])
        first, *others = map(self.read, operation.inputs[: 1 if operation.kind in _WITH_ONE else 2])
        match operation.kind:
            case "add":
                return first + others[0]
            case "subtract":
                return first - others[0]
            case "multiply":
                return first * others[0]
            case "divide":
                return first / others[0]
            case "root":
                return np.sqrt(first)
            case "inverse_root":
                return 1 / np.sqrt(first)
            case _:
                return first

    def _producer_of(self, value: str) -> Operation | None:
        index = self._producer.get(value)
        return None if index is None else self._operations[index]

    def _computed_shape(self, operation: Operation, deep: int) -> tuple[int, ...] | None:
        inputs = operation.inputs
        if operation.kind in _WITH_ONE and inputs:
            return self.shape(inputs[0], deep)
        if operation.kind == "minimum" and len(inputs) == 2:
            return () if self._is_zero(operation) else None
        if operation.kind not in _WITH_TWO or len(inputs) != 2 or operation.activated:
            return None
        first, second = (self.shape(own, deep) for own in inputs)
        if first is None or second is None:
            return None
        try:
            both = np.broadcast_shapes(first, second)
        except ValueError:
            return None
        # Two vectors could make a matrix of any size.
        return both if prod(both) == max(prod(first), prod(second)) else None

    def _is_zero(self, operation: Operation) -> bool:
        """Whether it is the lesser of something positive and zero.

        Exports of stillbox add such a zero to constants that a converter is not to fold.
        """
        positive = self._producer_of(operation.inputs[0])
        bound = operation.inputs[1]
        if positive is None or positive.kind != "absolute" or bound not in self._arrays:
            return False
        return self._arrays.shape(bound) == () and not self._arrays[bound].any()
