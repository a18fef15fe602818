"""Reads the constants and operations of a TensorFlow graph without TensorFlow.

Freezing replaces every variable of a graph by a constant of its name: `frozen_inference_graph.pb`,
and `saved_model.pb` of the Object Detection API's first generation, with empty `variables`.
Where tools have rewritten the graph, the operations show what the constants are.

Sources: `tensorflow/core/framework/{graph,node_def,attr_value,tensor}.proto`,
`tensorflow/core/protobuf/{saved_model,meta_graph}.proto`, `tensorflow/core/ops/nn_ops.cc`,
`tensorflow/core/grappler/optimizers/remapper.cc`.
"""

import math
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stillbox.checkpoints.array_files import check_unpacked
from stillbox.checkpoints.files import damage_of
from stillbox.checkpoints.graphs.graph import GraphArrays
from stillbox.checkpoints.graphs.operations import MOST_OPERATIONS, Operation, OperationKind
from stillbox.checkpoints.tf1 import DTYPES
from stillbox.errors import UserError
from stillbox.records.wire import LENGTH, VARINT, fields, integer_of, read_varint, values
from stillbox.untrusted import read_untrusted

_KINDS: Mapping[str, OperationKind] = {
    **dict.fromkeys(("Conv2D", "_FusedConv2D"), "convolution"),
    "DepthwiseConv2dNative": "depthwise",
    "FusedDepthwiseConv2dNative": "depthwise",
    "_FusedDepthwiseConv2dNative": "depthwise",
    **dict.fromkeys(("Add", "AddV2", "AddN", "BiasAdd"), "add"),
    "Sub": "subtract",
    "Mul": "multiply",
    "RealDiv": "divide",
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), "norm"),
    "Sqrt": "root",
    "Rsqrt": "inverse_root",
    "Abs": "absolute",
    "Minimum": "minimum",
    **dict.fromkeys(("Reshape", "ExpandDims", "Squeeze", "BroadcastTo"), "reshape"),
    # BatchToSpaceND follows a convolution with dilation.
    **dict.fromkeys(("Identity", "Cast", "BatchToSpaceND"), "same"),
    "Transpose": "transpose",
    # The ranges of training for integers are applied to the kernels themselves.
    **dict.fromkeys(("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel"), "same"),
    **dict.fromkeys(("Pad", "PadV2"), "pad"),
    **dict.fromkeys(("Shape", "ShapeN", "Size", "Rank"), "size"),
    **dict.fromkeys(("Sigmoid", "Softmax"), "scores"),
}
_NORM_EPSILON = 1e-4
"""TensorFlow's default, which need not be written."""


class Node(NamedTuple):
    """A node of a `GraphDef`."""

    name: str
    operation: str
    inputs: tuple[str, ...]
    fused: tuple[str, ...] = ()
    """Operations that are part of it, such as `BiasAdd`."""
    epsilon: float | None = None
    sizes: tuple[int, ...] = ()
    """The lengths of a split's results."""


def operations_of(nodes: Sequence[Node]) -> tuple[Operation, ...]:
    """Returns nodes as operations; a result has the name of its node."""
    splits = {node.name for node in nodes if node.sizes}
    return tuple(_operation(node, splits) for node in nodes)


def _operation(node: Node, splits: Collection[str]) -> Operation:
    # `^name` is an order without a value.
    inputs = tuple(_source(name, splits) for name in node.inputs if not name.startswith("^"))
    if node.sizes:
        results = (node.name, *(f"{node.name}:{place}" for place in range(1, len(node.sizes))))
        return Operation(node.name, "split", inputs, results, sizes=node.sizes)
    kind = _KINDS.get(node.operation, "other")
    normed = "FusedBatchNorm" in node.fused
    others = [name for name in node.fused if name not in ("BiasAdd", "FusedBatchNorm")]
    epsilon = 0.0
    if kind == "norm" or normed:
        epsilon = node.epsilon or _NORM_EPSILON
    return Operation(node.name, kind, inputs, (node.name,), bool(others), epsilon)


def _source(name: str, splits: Collection[str]) -> str:
    """Returns the value that an input names; `name:1` is the second result of a node."""
    node, _, place = name.partition(":")
    return name if node in splits and place not in ("", "0") else node


# Protocol messages have no more.
_MOST_BYTES = 2**31
# Nodes of a graph; real ones have up to some ten thousand.
_MOST_NODES = 1_000_000
_MOST_AXES = 8
_CONTENT, _HALVES = 4, 13
# Where a tensor holds values of its type, unless their bytes are in one piece.
_FIELDS = {1: 5, 2: 6, 14: _HALVES, 19: _HALVES}


class Constant(NamedTuple):
    """Place of a tensor in the file."""

    dtype_number: int
    """TensorFlow's number of the type."""
    shape: tuple[int, ...]
    start: int
    """First byte of the message."""
    end: int

    @property
    def size(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * DTYPES[self.dtype_number].itemsize


class GraphConstants(GraphArrays[Constant]):
    """The arrays of floating point among the constants of a `GraphDef` or `SavedModel`, by name.

    Raises:
        UserError: it is neither, damaged, or claims more than it can hold.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = read_untrusted(path, most=_MOST_BYTES)
        try:
            constants = dict(_constants(self._data))
            # A constant of equal values holds one.
            check_unpacked(sum(constant.size for constant in constants.values()), len(self._data))
        except (IndexError, ValueError) as error:
            raise self._unusable(error) from error
        super().__init__(constants)

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """The nodes of the graph."""
        try:
            places = [node for graph in _graphs(self._data) for node in _find(self._data, graph, 1)]
            if len(places) > MOST_OPERATIONS:
                raise ValueError(f"it has more than {MOST_OPERATIONS:,} nodes")
            return operations_of([_node(self._data, place) for place in places])
        except (IndexError, ValueError) as error:
            raise self._unusable(error) from error

    def _read(self, name: str, entry: Constant) -> np.ndarray:
        dtype, count = DTYPES[entry.dtype_number], math.prod(entry.shape)
        try:
            content = _values(self._data, entry)
            array = np.frombuffer(content, dtype)
        except (IndexError, ValueError) as error:
            raise self._damaged(name) from error
        if len(array) == count:
            return array.reshape(entry.shape)
        # The last value stands for all that follow; none is written of zeros.
        numbers = (number for number, *_ in fields(self._data, entry.start, entry.end))
        if len(array) > count or _CONTENT in numbers:
            raise self._damaged(name)
        last = array[-1] if len(array) else np.zeros((), dtype)
        rest = np.broadcast_to(last, count - len(array))
        return np.concatenate([array, rest]).reshape(entry.shape)

    def _unusable(self, error: Exception) -> UserError:
        problem = f"the file is damaged or no graph of TensorFlow: {damage_of(error)}"
        fix = "copy the file again, or give the checkpoint that it was made of"
        return UserError(problem, where=str(self._path), fix=fix)

    def _damaged(self, name: str) -> UserError:
        problem = f"the values of the constant {name!r} are not as many as its shape says"
        return UserError(problem, where=str(self._path), fix="copy the file again")


def _constants(data: bytes) -> Iterator[tuple[str, Constant]]:
    """Yields names and places of the constants."""
    for graph in _graphs(data):
        for count, node in enumerate(_find(data, graph, 1)):
            if count >= _MOST_NODES:
                raise ValueError(f"it has more than {_MOST_NODES:,} nodes")
            constant = _constant(data, node)
            if constant is not None:
                yield _first(data, node, 1).decode(), constant


def _graphs(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the places of the graphs in a SavedModel, or the place of the whole file."""
    number, kind, *_ = next(fields(data, 0, len(data)), (0, 0))
    # A SavedModel begins with its version, a graph with a node.
    if (number, kind) != (1, VARINT):
        yield 0, len(data)
        return
    for meta in _find(data, (0, len(data)), 2):
        yield from _find(data, meta, 2)


def _find(data: bytes, place: tuple[int, int], number: int) -> Iterator[tuple[int, int]]:
    """Yields the places of the messages and texts under a number in the message at a place."""
    for field, kind, start, end in fields(data, *place):
        if field == number and kind == LENGTH:
            yield start, end


def _first(data: bytes, place: tuple[int, int], number: int) -> bytes:
    return data[slice(*next(_find(data, place, number), (0, 0)))]


def _node(data: bytes, node: tuple[int, int]) -> Node:
    """Returns a node without the values of a constant."""
    name, operation = (_first(data, node, number) for number in (1, 2))
    inputs = tuple(data[slice(*place)].decode() for place in _find(data, node, 3))
    fused: tuple[str, ...] = ()
    epsilon = None
    for attribute in _find(data, node, 5):
        key = _first(data, attribute, 1)
        for value in _find(data, attribute, 2):
            if key == b"fused_ops":
                places = (
                    place for entry in _find(data, value, 1) for place in _find(data, entry, 2)
                )
                fused = tuple(data[slice(*place)].decode() for place in places)
            elif key == b"epsilon":
                bits = integer_of(dict(values(data[slice(*value)])), 4)
                (epsilon,) = struct.unpack("<f", bits.to_bytes(8, "little")[:4])
    return Node(name.decode(), operation.decode(), inputs, fused, epsilon)


def _constant(data: bytes, node: tuple[int, int]) -> Constant | None:
    """Returns the place of the values of a node, if it is an array of floating point."""
    if _first(data, node, 2) != b"Const":
        return None
    for attribute in _find(data, node, 5):
        if _first(data, attribute, 1) == b"value":
            for value in _find(data, attribute, 2):
                for tensor in _find(data, value, 8):
                    return _array(data, tensor)
    return None


def _array(data: bytes, tensor: tuple[int, int]) -> Constant | None:
    shape: tuple[int, ...] = ()
    dtype = 0
    for number, kind, start, end in fields(data, *tensor):
        if (number, kind) == (1, VARINT):
            dtype, _ = read_varint(data, start)
        elif (number, kind) == (2, LENGTH):
            axes = _find(data, (start, end), 2)
            shape = tuple(integer_of(dict(values(data[slice(*axis)])), 1) for axis in axes)
    usable = dtype in _FIELDS and len(shape) <= _MOST_AXES and all(shape)
    return Constant(dtype, shape, *tensor) if usable else None


def _values(data: bytes, constant: Constant) -> bytes | bytearray:
    """Returns the bytes of the values that a tensor holds, packed or one by one."""
    field, content = _FIELDS[constant.dtype_number], bytearray()
    for number, kind, start, end in fields(data, constant.start, constant.end):
        if number == _CONTENT and kind == LENGTH:
            return data[start:end]
        if number != field:
            continue
        if field == _HALVES:
            # The bits of half floats are integers.
            while start < end:
                bits, start = read_varint(data, start)
                content += bits.to_bytes(8, "little")[:2]
        else:
            content += data[start:end]
    return content
