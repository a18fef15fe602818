"""Operations of graphs, and the values that they compute of constants alone."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from stillbox.checkpoints.array_files import ArrayEntry, LazyArrays

OperationKind = Literal[
    "convolution", "depthwise", "add", "subtract", "multiply", "divide", "root", "inverse_root",
    "absolute", "minimum", "norm", "same", "reshape", "transpose", "split", "pad", "size", "scores",
    "other",
]  # fmt: skip
"""`same` returns its first input, perhaps of another type; `split` divides it among its outputs;
`size` returns the shape of its input, and `scores` sigmoids or a softmax."""
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
    sizes: tuple[int, ...] = ()
    """The lengths of a split's outputs."""


class Constants:
    """The constants of a graph, and the results of arithmetic on them by their `producer`.

    `order` has the operations, each after those that it depends on.
    """

    def __init__(
        self,
        arrays: LazyArrays[ArrayEntry],
        operations: Sequence[Operation],
        producer: Mapping[str, int],
        order: Iterable[int],
    ) -> None:
        self._arrays = arrays
        self._operations = operations
        self._producer = producer
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._depths: dict[str, int] = {}
        for index in order:
            self._derive(operations[index])

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

    def shape(self, value: str) -> tuple[int, ...] | None:
        """Returns the shape of a value, or None if it depends on other things than constants."""
        if value in self._arrays:
            return self._arrays.shape(value)
        return self._shapes.get(value)

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

    def _derive(self, operation: Operation) -> None:
        """Gives the results of an operation their shape, unless they take too long to read."""
        shape = self._computed_shape(operation)
        depth = 1 + max((self._depths.get(source, 0) for source in operation.inputs), default=0)
        # Each step may read its value twice.
        if shape is not None and depth <= _MOST_DEEP:
            self._shapes.update(dict.fromkeys(operation.outputs, shape))
            self._depths.update(dict.fromkeys(operation.outputs, depth))

    def _computed_shape(self, operation: Operation) -> tuple[int, ...] | None:
        inputs = operation.inputs
        if operation.kind in _WITH_ONE and inputs:
            return self.shape(inputs[0])
        if operation.kind == "minimum" and len(inputs) == 2:
            return () if self._is_zero(operation) else None
        if operation.kind not in _WITH_TWO or len(inputs) != 2 or operation.activated:
            return None
        first, second = map(self.shape, inputs)
        if first is None or second is None:
            return None
        try:
            both = np.broadcast_shapes(first, second)
        except ValueError:
            return None
        # Two vectors could make a matrix of any size.
        return both if prod(both) == max(prod(first), prod(second)) else None

    def _is_zero(self, operation: Operation) -> bool:
        """Whether it is the zero that exports of stillbox add against folding."""
        positive = self._producer_of(operation.inputs[0])
        bound = operation.inputs[1]
        if positive is None or positive.kind != "absolute" or bound not in self._arrays:
            return False
        return self._arrays.shape(bound) == () and not self._arrays[bound].any()
