"""Graphs of operations with constants, and the convolutions in them.

A convolution is known by its kernel and by the convolutions with results that reach it. Everything
between them, such as activations, sums, paddings and resizings, is passed over, because every
converter writes it differently. Values of constants alone, such as the factor of a batch norm, are
computed.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from stillbox.checkpoints.array_files import ArrayEntry, LazyArrays
from stillbox.checkpoints.graphs.operations import (
    Constants,
    Operation,
    OperationKind,
)

# Between a convolution and its offset; a constant is not the same after a transposition.
_UNCHANGED = ("same", "transpose")
_MOST_CONVOLUTIONS = 5_000
# Operations before or behind a convolution with constants alone.
_MOST_IN_A_ROW = 8
# Uses of a result, and summands, that are looked through: thousands could be by every convolution.
_MOST_AT_ONCE = 32


class Step(NamedTuple):
    """What is done to each channel of a convolution's result."""

    kind: OperationKind
    constants: tuple[str, ...]
    epsilon: float = 0.0
    channels: tuple[int, int] | None = None
    """The first and behind the last of the channels that a split takes; None: all."""


def part_of(array: np.ndarray, channels: tuple[int, int] | None) -> np.ndarray:
    """Returns the channels that a split takes of an array, which may have one for all."""
    if channels is None or array.shape[-1] == 1:
        return array
    first, last = channels
    return array[..., first:last]


class Layer(NamedTuple):
    """One use of a kernel; the same kernel may be used several times."""

    name: str
    """The operation's."""
    kernel: str
    """Name of the constant."""
    shape: tuple[int, ...]
    """`[kh, kw, in, out]`, of a depthwise one `[kh, kw, C * M]`."""
    before: int
    """The layers with results that reach this one and no layer between, a bit for each."""
    scores: bool
    """The result becomes scores, with no layer between."""
    steps: tuple[Step, ...]
    """What follows the convolution with constants alone, such as a bias."""
    pixels: tuple[Step, ...] = ()
    """What is done with constants alone between the input of the graph and the convolution."""
    unclear: bool = False
    """What follows is computed with something that is neither constant nor of another layer."""
    channels: tuple[int, int] | None = None
    """As `Step.channels`."""
    depth: int = 0
    """Operations on the longest way to it from the results of layers before it."""


class GraphArrays(LazyArrays[ArrayEntry]):
    """The constants of a graph by name, with its operations; single numbers are not listed."""

    kernel_axes: tuple[int, int, int, int] = (0, 1, 2, 3)
    """Transposes a kernel to `[kh, kw, in, out]`, and a depthwise one to `[kh, kw, ...]`."""
    generator: str = ""
    """The program that the model was trained with, if the file says it."""

    def __iter__(self) -> Iterator[str]:
        # A single number is a part of the arithmetic: weights have axes.
        return (name for name, entry in self.entries.items() if entry.shape)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    @abstractmethod
    def operations(self) -> Sequence[Operation]:
        """The operations, in any order.

        Raises:
            UserError: they are damaged or too many.
        """

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The convolutions with constant kernels; a layer stands after the layers before it.

        Raises:
            ValueError: there are more than 5,000.
        """
        return tuple(self._search.layers())

    @cached_property
    def _search(self) -> "_Search":
        return _Search(self)

    def read_constant(self, name: str) -> np.ndarray:
        """Returns a constant of a step in one axis, float64."""
        return self._search.constants.read(name).reshape(-1)

    def read_kernel(self, name: str) -> np.ndarray:
        """Returns a kernel `[kh, kw, in, out]` or `[kh, kw, ...]`, float32."""
        return self[name].transpose(self.kernel_axes).astype(np.float32)


class _Convolution(NamedTuple):
    """A convolution with a constant kernel; `before` and `depth` are as in `Layer`."""

    number: int
    """The operation's."""
    kernel: str
    before: int
    depth: int
    split: Operation | None
    """What divides the result, with constants alone between the two."""


class _Search:
    """Walks a graph from its inputs to its outputs."""

    def __init__(self, graph: GraphArrays[ArrayEntry]) -> None:
        self._graph = graph
        self._operations: list[Operation] = []
        self._reached: dict[int, int] = {}  # the layers that reach an operation's results
        self._parts: dict[str, int] = {}  # the layers that reach a result of a split
        self._depths: dict[int, int] = {}  # operations since the last layer
        self._count = 0  # layers so far
        self._moved: set[str] = set()  # offsets behind sums
        self._producer: dict[str, int] = {}
        self._users: dict[str, list[int]] = defaultdict(list)
        for operation in graph.operations:
            # A SavedModel may hold its graph several times.
            if self._producer.keys().isdisjoint(operation.outputs):
                self._add(operation)
        self._order = self._sorted()
        self.constants = Constants(graph, self._operations, self._producer, self._order)

    def _add(self, operation: Operation) -> None:
        index = len(self._operations)
        self._operations.append(operation)
        self._producer.update(dict.fromkeys(operation.outputs, index))
        for value in operation.inputs:
            self._users[value].append(index)

    def layers(self) -> Iterator[Layer]:
        """Yields the layers in order."""
        scored = self._scored()
        convolutions = [self._noted(index) for index in self._order]
        # What follows a convolution is known when all have been noted.
        for convolution in filter(None, convolutions):
            layer = self._layer(convolution)
            yield from self._divided(layer, convolution, scored)

    def _noted(self, index: int) -> "_Convolution | None":
        """Notes which layers reach the results of an operation; returns it if it is one.

        Raises:
            ValueError: there are too many.
        """
        operation = self._operations[index]
        kernel = self._kernel(operation)
        sources = operation.inputs if kernel is None else operation.inputs[:1]
        before = 0 if operation.kind == "size" else self._union(sources)
        producers = (self._producer.get(value, -1) for value in sources)
        depth = max((self._depths.get(producer, 0) for producer in producers), default=0)
        self._depths[index] = depth + 1 if kernel is None else 0
        if kernel is None:
            self._reached[index] = before
            return None
        split = self._split_behind(operation, self._shape(operation, kernel)[-1])
        results = (operation.name,) if split is None else split.outputs
        bits = {value: 1 << self._count + place for place, value in enumerate(results)}
        self._reached[index] = sum(bits.values())
        self._parts |= bits
        self._count += len(results)
        if self._count > _MOST_CONVOLUTIONS:
            raise ValueError(f"it has more than {_MOST_CONVOLUTIONS:,} convolutions")
        return _Convolution(index, kernel, before, depth, split)

    def _layer(self, convolution: "_Convolution") -> Layer:
        """Returns a convolution as one layer, without its scores."""
        number, kernel, before, depth, _ = convolution
        operation = self._operations[number]
        shape = self._shape(operation, kernel)
        pixels = () if before else self._pixels(operation.inputs[0])
        steps, unclear = self._steps(operation, shape[-1])
        name = operation.name
        return Layer(name, kernel, shape, before, False, steps, pixels, unclear, depth=depth)

    def _divided(
        self, layer: Layer, convolution: _Convolution, scored: set[int]
    ) -> Iterator[Layer]:
        """Yields a layer for each result of the split behind a convolution, if there is one."""
        split = convolution.split
        if split is None:
            yield layer._replace(scores=convolution.number in scored)
            return
        ends = pairwise(accumulate(split.sizes, initial=0))
        for value, (first, last) in zip(split.outputs, ends, strict=True):
            channels = first, last
            yield layer._replace(
                name=value,
                shape=(*layer.shape[:-1], last - first),
                scores=self._is_scored(value, scored),
                steps=tuple(step._replace(channels=channels) for step in layer.steps),
                channels=channels,
            )

    def _split_behind(self, operation: Operation, channels: int) -> Operation | None:
        """Returns the split of a convolution's result, with constants alone between the two."""
        for _ in range(_MOST_IN_A_ROW):
            following = self._following(operation)
            if following is None or following.kind == "split":
                return following if following and sum(following.sizes) == channels else None
            others = [other for other in following.inputs if other not in operation.outputs]
            passes = following.kind in _UNCHANGED
            if not passes and any(self.constants.shape(other) is None for other in others):
                return None
            operation = following
        return None

    def _union(self, values: Iterable[str]) -> int:
        """Returns the layers that reach any of the values."""
        union = 0
        for value in values:
            # A loop leads back to operations that have no entry yet.
            reached = self._reached.get(self._producer.get(value, -1), 0)
            union |= self._parts.get(value, reached)
        return union

    def _sorted(self) -> list[int]:
        """Returns the operations, each after those that it depends on, except in loops."""
        order: list[int] = []
        seen: set[int] = set()
        stack = [(index, False) for index in reversed(range(len(self._operations)))]
        while stack:
            index, finished = stack.pop()
            if finished:
                order.append(index)
            elif index not in seen:
                seen.add(index)
                stack.append((index, True))
                producers = map(self._producer.get, self._operations[index].inputs)
                stack += [(producer, False) for producer in producers if producer is not None]
        return order

    def _scored(self) -> set[int]:
        """Returns the operations with results that become scores before the next convolution."""
        scored: set[int] = set()
        for index in reversed(self._order):
            if any(self._is_scored(value, scored) for value in self._operations[index].outputs):
                scored.add(index)
        return scored

    def _is_scored(self, value: str, scored: set[int]) -> bool:
        """Whether a result becomes scores; `scored` has the operations behind it that do."""
        kinds = {user: self._operations[user].kind for user in self._users[value]}
        return any(
            kind == "scores" or (user in scored and kind not in ("convolution", "depthwise"))
            for user, kind in kinds.items()
        )

    def _kernel(self, operation: Operation) -> str | None:
        """Returns the name of the kernel of a convolution, if it is a constant of four axes."""
        if operation.kind not in ("convolution", "depthwise") or len(operation.inputs) < 2:
            return None
        kernel = self.constants.stored(operation.inputs[1])
        return kernel if kernel and len(self._graph.shape(kernel)) == 4 else None

    def _shape(self, operation: Operation, kernel: str) -> tuple[int, ...]:
        held = self._graph.shape(kernel)
        rows, columns, inputs, outputs = (held[axis] for axis in self._graph.kernel_axes)
        if operation.kind == "depthwise":
            return rows, columns, inputs * outputs
        return rows, columns, inputs, outputs

    def _steps(self, operation: Operation, channels: int) -> tuple[tuple[Step, ...], bool]:
        """Returns the steps behind a convolution, and whether the last is not understood."""
        kind: OperationKind = "norm" if operation.epsilon else "add"
        constants = operation.inputs[2:] if kind == "norm" else operation.inputs[2:3]
        first = self._step(kind, constants, channels, operation.epsilon)
        steps = [] if first is None else [first]
        summed = False
        for _ in range(_MOST_IN_A_ROW):
            following = self._following(operation)
            if following is None:
                break
            value, operation = operation.outputs[0], following
            if operation.kind in _UNCHANGED:
                continue
            if operation.kind == "split":
                break
            others = [other for other in operation.inputs if other != value]
            step = self._step(operation.kind, others, channels, operation.epsilon)
            if step is not None:
                moved = summed and not self._is_first_offset(operation)
                if moved or (self._adds_scalar(step) and not self._is_of_norm(steps)):
                    break
                steps.append(step)
            elif not self._union(others):
                return tuple(steps), True
            elif operation.kind == "add":
                # Grappler moves the offset behind the sum with another result.
                summed = True
            else:
                break
        return tuple(steps), False

    def _adds_scalar(self, step: Step) -> bool:
        return step.kind in ("add", "subtract") and self.constants.shape(step.constants[0]) == ()

    def _is_of_norm(self, steps: Sequence[Step]) -> bool:
        """Whether an added number is an offset, not a part of an activation."""
        return not steps or steps[-1].kind in ("multiply", "divide")

    def _pixels(self, value: str) -> tuple[Step, ...]:
        """Returns the steps from an input of the graph to a value, if there is nothing else."""
        steps: list[Step] = []
        for _ in range(_MOST_IN_A_ROW):
            index = self._producer.get(value)
            # Graphs of TensorFlow have an operation for their input, which has none itself.
            if index is None or not self._operations[index].inputs:
                return tuple(reversed(steps))
            operation = self._operations[index]
            value, *others = operation.inputs
            if operation.kind in (*_UNCHANGED, "pad"):
                continue
            constant = len(others) == 1 and self.constants.shape(others[0]) is not None
            arithmetic = operation.kind in ("add", "subtract", "multiply", "divide")
            if not constant or operation.activated or not arithmetic:
                return ()
            steps.append(Step(operation.kind, (others[0],)))
        return ()

    def _is_first_offset(self, operation: Operation) -> bool:
        """Whether it adds an offset to a sum, and none of the summands has it yet."""
        first = operation.kind == "add" and operation.name not in self._moved
        self._moved.add(operation.name)
        return first

    def _following(self, operation: Operation) -> Operation | None:
        """Returns the only operation on a result, if it is one on channels or a conversion."""
        if operation.activated or len(operation.outputs) == 0:
            return None
        value = operation.outputs[0]
        if len(self._users[value]) > _MOST_AT_ONCE:
            return None
        users = [self._operations[index] for index in self._users[value]]
        users = [user for user in users if user.kind != "size"]
        if len(users) != 1 or len(users[0].inputs) > _MOST_AT_ONCE:
            return None
        (user,) = users
        fits = user.kind in ("add", "multiply") or (
            user.kind in ("subtract", "divide", "norm", "split", *_UNCHANGED)
            and user.inputs[0] == value
        )
        return user if fits else None

    def _step(
        self, kind: OperationKind, values: Sequence[str], channels: int, epsilon: float
    ) -> Step | None:
        complete = len(values) == (4 if kind == "norm" else 1)
        sound = complete and all(self._of_channels(value, channels) for value in values)
        return Step(kind, tuple(values), epsilon) if sound else None

    def _of_channels(self, value: str, channels: int) -> bool:
        shape = self.constants.shape(value)
        if not shape:
            # A constant of equal values may be written as one.
            return shape is not None
        *others, last = shape
        return last == channels and all(axis == 1 for axis in others)
