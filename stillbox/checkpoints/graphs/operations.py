"""The operations of a graph, by what the readers of weights have to know of them."""

from typing import Literal, NamedTuple

OperationKind = Literal[
    "convolution", "depthwise", "add", "subtract", "multiply", "divide", "root", "inverse_root",
    "absolute", "minimum", "norm", "same", "reshape", "pad", "size", "scores", "other",
]  # fmt: skip
"""`same` returns its first input, perhaps of another type; `size` returns the shape of its input,
and `scores` sigmoids or a softmax."""
MOST_OPERATIONS = 100_000
"""Real graphs have some thousands."""


class Operation(NamedTuple):
    """One operation of a graph; inputs and outputs are names of values."""

    name: str
    kind: OperationKind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    activated: bool = False
    """An activation is applied last."""
    epsilon: float = 0.0
    """That of a norm. Its inputs are x, gamma, beta, mean and variance, and a convolution's that is
    followed by a norm x, kernel and these four."""
