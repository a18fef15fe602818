"""An ONNX graph under construction: its nodes, the values of the JAX program, and their writer.

The writer writes each value and each constant once, in the order of axes that is read. Some
operations are deferred until the next one is known: a padding becomes part of its convolution,
and so do the factors and offsets of a batch norm.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Union

import numpy as np
from jax.export import symbolic_shape
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

OPSET = 18
"""Version of the operators."""
IR_VERSION = 8
"""Version of the file, as old as the operators."""

FLOAT, UINT8, INT32, INT64, BOOL = 1, 2, 6, 7, 9
"""Numbers of types in `onnx.TensorProto`."""

Info = tuple[int, tuple[int | str, ...]]
"""Type and shape of an input or output."""

Attribute = Union[int, str, Sequence[int], "onnx.GraphProto"]
"""A parameter of an operator."""

Operand = str | np.ndarray | float | int
"""The name of a tensor, or a constant; Python's numbers become float32 and int64."""


class Graph:
    """Collects nodes and constants.

    The graph of a `branch` of an `If` node shares the names and constants of its parent.
    """

    def __init__(self, parent: "Graph | None" = None) -> None:
        self._nodes: list[onnx.NodeProto | Graph] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = (
            {} if parent is None else parent._constants
        )
        self._root: Graph = self if parent is None else parent._root
        self._made = 0

    def branch(self) -> Self:
        """Returns the empty graph of a branch of this one."""
        return type(self)(self)

    def placeholder(self) -> Self:
        """Returns a graph; its later nodes are inserted at this place of this graph."""
        place = type(self)(self)
        self._nodes.append(place)
        return place

    def op(
        self, kind: str, *inputs: Operand, name: str | None = None, **attributes: Attribute
    ) -> str:
        """Appends a node of the operator `kind` with one output, and returns the output's name.

        An empty name among the inputs leaves an optional one out.
        """
        return self.ops(kind, *inputs, names=[name], **attributes)[0]

    def ops(
        self, kind: str, *inputs: Operand, names: Sequence[str | None], **attributes: Attribute
    ) -> list[str]:
        """Appends a node with several outputs; see `op`."""
        from onnx import helper

        outputs = [name or self.new_name(kind) for name in names]
        node = helper.make_node(
            kind, [self._name_of(operand) for operand in inputs], outputs, outputs[0], **attributes
        )
        self._nodes.append(node)
        return outputs

    def constant(self, array: NDArray[Any]) -> str:
        """Returns the name of a constant; equal arrays have one."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (array.dtype.str, array.shape, array.tobytes())
        return self._constants.setdefault(key, f"constant_{len(self._constants)}")

    def model(
        self, inputs: dict[str, Info], outputs: dict[str, Info], description: str
    ) -> "onnx.ModelProto":
        """Returns the checked model; a length with a name is free."""
        from onnx import checker, helper

        graph = helper.make_graph(
            list(self._all_nodes()),
            "detector",
            [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()],
            [helper.make_tensor_value_info(name, *info) for name, info in outputs.items()],
            self._initializers(),
            description,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="stillbox",
        )
        checker.check_model(model, full_check=True)
        return model

    def either(
        self, condition: str, branch: "Graph", results: Sequence[str], otherwise: Sequence[str]
    ) -> list[str]:
        """Appends an `If` node and returns the names of its outputs.

        `results` are outputs of the branch; `otherwise` are tensors of this graph.
        """
        other = self.branch()
        same = [other.op("Identity", name) for name in otherwise]
        bodies = {"then_branch": branch._body(results), "else_branch": other._body(same)}
        return self.ops("If", condition, names=[None] * len(results), **bodies)

    def _body(self, results: Sequence[str]) -> "onnx.GraphProto":
        from onnx import ValueInfoProto, helper

        outputs = [ValueInfoProto(name=name) for name in results]
        return helper.make_graph(list(self._all_nodes()), self.new_name("branch"), [], outputs)

    def _all_nodes(self) -> Iterator["onnx.NodeProto"]:
        for node in self._nodes:
            if isinstance(node, Graph):
                yield from node._all_nodes()
            else:
                yield node

    def _initializers(self) -> list["onnx.TensorProto"]:
        from onnx import numpy_helper

        return [
            numpy_helper.from_array(np.frombuffer(content, dtype).reshape(shape), name)
            for (dtype, shape, content), name in self._constants.items()
        ]

    def _name_of(self, operand: Operand) -> str:
        if isinstance(operand, str):
            return operand
        dtype = np.float32 if isinstance(operand, float) else None
        return self.constant(np.asarray(operand, dtype))

    def new_name(self, kind: str) -> str:
        """Returns a name that no tensor has yet."""
        root = self._root
        root._made += 1
        return f"{kind.lower()}_{root._made}"


Order = tuple[int, ...]

(BATCH,) = symbolic_shape("batch", constraints=["batch >= 1"])
"""The number of images, a free length in the shapes of a traced program."""


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant. An axis of length 1 may represent a longer one with equal values."""

    array: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the graph; its axes may have another order than the program's."""

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
    kernel: Constant
    """The kernel, with its axes in the program's order."""
    kernel_order: Order
    """The axes O, I, H, W of the kernel."""
    order: Order
    """Order of the output's axes."""
    attributes: dict[str, Any]
    factor: NDArray[np.float64]
    """`[O]`."""
    offset: NDArray[np.float64]
    """`[O]`."""


Value = Constant | Tensor | Padded | Clipped | Repeated | Convolved


def identity(rank: int) -> Order:
    """Returns the order that moves no axis."""
    return tuple(range(rank))


def fixed(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns a shape with 1 for free lengths."""
    return tuple(1 if isinstance(length, type(BATCH)) else length for length in shape)


def by_channel(value: Constant, channels: int, axis: int) -> NDArray[np.float64] | None:
    """Returns a constant as `[channels]`; None if it varies along other axes than `axis`."""
    array = value.array
    if array.size == 1:
        return np.full(channels, array.reshape(()), np.float64)
    if array.size == channels and array.ndim > axis and array.shape[axis] == channels:
        return array.reshape(channels).astype(np.float64)
    return None


class NetworkWriter:
    """Turns values into tensors of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._written: dict[int, tuple[Value, Tensor]] = {}
        self._convolutions: dict[tuple[int, Order], list[tuple[Convolved, str, Graph]]] = (
            defaultdict(list)
        )

    def tensor(self, value: Value) -> Tensor:
        """Returns a value as a tensor of the graph in any order; it is written once."""
        if isinstance(value, Tensor):
            return value
        if id(value) not in self._written:
            # The value is kept too, so that no other value can take its id.
            self._written[id(value)] = value, self._materialize(value)
        return self._written[id(value)][1]

    def name(self, value: Value, order: Order) -> str:
        """Returns the name of a value with its axes in `order`."""
        tensor = self.tensor(value)
        if tensor.order == order:
            return tensor.name
        moves = [tensor.order.index(axis) for axis in order]
        return self.graph.op("Transpose", tensor.name, perm=moves)

    def full(
        self, value: Value, shape: tuple[int, ...], like: Value, order: Order | None = None
    ) -> str:
        """Returns the name of a value of `shape`; a constant is expanded where it is not.

        Args:
            value: an array of the program.
            shape: lengths of its axes; the first may be free.
            like: a value that has the same first axis then.
            order: of the axes; None: the program's.
        """
        order = identity(len(shape)) if order is None else order
        if not isinstance(value, Constant) or value.array.shape == shape:
            return self.name(value, order)
        array = np.broadcast_to(value.array, fixed(shape))
        if isinstance(shape[0], int):
            return self.name(Constant(array), order)
        batch = self.name(like, identity(len(self.tensor(like).order)))
        rest = np.array(shape[1:], np.int64)
        lengths = self.graph.op("Concat", self.graph.op("Shape", batch, end=1), rest, axis=0)
        whole = self.graph.op("Expand", array, lengths)
        return self.name(Tensor(whole, identity(len(shape))), order)

    def unexpanded(self, value: Repeated) -> Tensor:
        """Returns a repeated array with its new axes, of length 1 where it repeats."""
        rank = len(value.shape)
        source = value.source
        inner = self.unexpanded(source) if isinstance(source, Repeated) else self.tensor(source)
        name = self.name(inner, identity(len(inner.order)))
        new = [axis for axis in range(rank) if axis not in value.axes]
        if new:
            name = self.graph.op("Unsqueeze", name, np.array(new))
        return Tensor(name, identity(rank))

    def _materialize(self, value: Value) -> Tensor:
        if isinstance(value, Padded):
            return self._pad(value)
        if isinstance(value, Clipped):
            return self._clip(value)
        if isinstance(value, Convolved):
            return self._convolve(value)
        if isinstance(value, Repeated):
            short = self.unexpanded(value)
            if not value.longer:
                return short
            name = self.graph.op("Expand", short.name, np.array(fixed(value.shape)))
            return Tensor(name, short.order)
        assert isinstance(value, Constant)
        return Tensor(self.graph.constant(value.array), identity(value.array.ndim))

    def _pad(self, value: Padded) -> Tensor:
        tensor = self.tensor(value.source)
        pads = [value.pads[axis][end] for end in (0, 1) for axis in tensor.order]
        name = self.graph.op("Pad", tensor.name, np.array(pads), float(value.value))
        return Tensor(name, tensor.order)

    def _clip(self, value: Clipped) -> Tensor:
        tensor = self.tensor(value.source)
        if (value.low, value.high) == (0.0, np.inf):
            return Tensor(self.graph.op("Relu", tensor.name), tensor.order)
        ends = [float(end) if np.isfinite(end) else "" for end in (value.low, value.high)]
        return Tensor(self.graph.op("Clip", tensor.name, *ends), tensor.order)

    def _convolve(self, value: Convolved) -> Tensor:
        # The nodes are written at the end, when shared kernels are known.
        place = self.graph.placeholder()
        name = self.graph.new_name("Conv")
        key = id(value.kernel.array), value.kernel_order
        self._convolutions[key].append((value, name, place))
        return Tensor(name, value.order)

    def finish(self) -> None:
        """Writes the convolutions; factors multiply the kernel unless several layers share it."""
        for uses in self._convolutions.values():
            for value, name, place in uses:
                kernel = value.kernel.array.transpose(value.kernel_order)
                if len(uses) == 1:
                    scaled = kernel * value.factor[:, None, None, None]
                    weights = [scaled.astype(np.float32), value.offset.astype(np.float32)]
                    place.op("Conv", value.source.name, *weights, name=name, **value.attributes)
                    continue
                product = place.op("Conv", value.source.name, kernel, **value.attributes)
                factor, offset = (
                    column.astype(np.float32)[:, None, None]
                    for column in (value.factor, value.offset)
                )
                if (factor != 1).any():
                    product = place.op("Mul", product, factor)
                place.op("Add", product, offset, name=name)
