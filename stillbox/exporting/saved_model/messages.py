"""The protocol messages of a SavedModel that holds one graph.

Each function returns the bytes of a message. Source: `tensorflow/core/framework/{attr_value,
function,graph,node_def,op_def,tensor,tensor_shape,types,variable}.proto`,
`tensorflow/core/protobuf/{meta_graph,saved_model,saver}.proto`.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from stillbox.checkpoints.tf1 import DTYPES
from stillbox.records.wire import (
    VARINT,
    bytes_field,
    bytes_of,
    encode_varint,
    integer_of,
    values,
    varint_field,
)

TAG = "serve"
# The version of TensorFlow 2.17's graphs.
_PRODUCER = 1882
_PREDICT = "tensorflow/serving/predict"
_SCHEMA, _SAVER_V2 = 1, 2
# The collection in which loaders look for variables.
_VARIABLES = "variables"
_64_BITS = 2**64 - 1


class DType(IntEnum):
    """Types of tensors by their numbers."""

    FLOAT = 1
    DOUBLE = 2
    INT32 = 3
    UINT8 = 4
    STRING = 7
    INT64 = 9
    BOOL = 10
    RESOURCE = 20

    @classmethod
    def of(cls, dtype: np.dtype) -> "DType":
        """Returns the type of numpy's."""
        return cls(next(number for number, known in DTYPES.items() if known == dtype))

    @property
    def numpy(self) -> np.dtype:
        """The type of numpy's."""
        return DTYPES[self]


Shape = tuple[int | None, ...]
"""Lengths of axes; None: any."""


class FunctionName(str):
    """The name of a function of the graph."""


class Array(NamedTuple):
    """The type and value of a constant."""

    dtype: DType
    shape: Shape
    field: bytes
    """The field of `TensorProto` with the values."""

    @classmethod
    def of(cls, content: np.ndarray | bytes | list[bytes]) -> "Array":
        """Returns an array of numbers, one text, or an axis of texts."""
        if isinstance(content, np.ndarray):
            return cls(DType.of(content.dtype), content.shape, bytes_field(4, content.tobytes()))
        texts = [content] if isinstance(content, bytes) else content
        shape = () if isinstance(content, bytes) else (len(content),)
        return cls(DType.STRING, shape, b"".join(bytes_field(8, text) for text in texts))


Scalar = bool | int | float | str | bytes | DType | Shape | FunctionName
Attribute = Scalar | Array | Sequence[DType] | Sequence[Shape] | Sequence[str]
"""A parameter of an operator. A tuple is a shape, and a list one of types, shapes or texts."""


def attribute(value: Attribute) -> bytes:
    """Returns an `AttrValue`."""
    if isinstance(value, Array):
        content = varint_field(1, value.dtype) + bytes_field(2, shape_message(value.shape))
        return bytes_field(8, content + value.field)
    if isinstance(value, list):
        return bytes_field(1, b"".join(map(_scalar, value)))
    if isinstance(value, FunctionName):
        return bytes_field(10, bytes_field(1, value.encode()))
    return _scalar(value)


def _scalar(value: Attribute) -> bytes:
    """Returns a field of `AttrValue`, which is also one of its `ListValue`."""
    match value:
        case bool():
            return _whole(5, value)
        case DType():
            return _whole(6, value)
        case int():
            return _whole(3, value)
        case tuple():
            return bytes_field(7, shape_message(value))
        case str():
            return bytes_field(2, value.encode())
        case bytes():
            return bytes_field(2, value)
    raise TypeError(f"{value!r} is no attribute")


def _whole(number: int, value: int) -> bytes:
    """Returns a field that is an integer and is written even if it is 0."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value & _64_BITS)


def shape_message(shape: Shape) -> bytes:
    """Returns a `TensorShapeProto`."""
    sizes = (-1 if size is None else size for size in shape)
    return b"".join(bytes_field(2, varint_field(1, size & _64_BITS)) for size in sizes)


def node(
    name: str, operator: str, inputs: Iterable[str], attributes: Mapping[str, Attribute]
) -> bytes:
    """Returns a `NodeDef`."""
    parts = [bytes_field(1, name.encode()), bytes_field(2, operator.encode())]
    parts += [bytes_field(3, source.encode()) for source in inputs]
    parts += [bytes_field(5, _entry(key, attribute(value))) for key, value in attributes.items()]
    return b"".join(parts)


def function(
    name: str,
    arguments: Mapping[str, DType],
    nodes: Iterable[bytes],
    results: Mapping[str, tuple[DType, str]],
) -> bytes:
    """Returns a `FunctionDef`; each result is a type and the tensor that is returned."""
    signature = [bytes_field(1, name.encode())]
    signature += [bytes_field(2, _argument(key, dtype)) for key, dtype in arguments.items()]
    signature += [bytes_field(3, _argument(key, dtype)) for key, (dtype, _) in results.items()]
    parts = [bytes_field(1, b"".join(signature))]
    parts += [bytes_field(3, node) for node in nodes]
    parts += [bytes_field(4, _entry(key, tensor.encode())) for key, (_, tensor) in results.items()]
    return b"".join(parts)


def _argument(name: str, dtype: DType) -> bytes:
    return bytes_field(1, name.encode()) + varint_field(3, dtype)


def graph(nodes: Iterable[bytes], functions: Iterable[bytes]) -> bytes:
    """Returns a `GraphDef`."""
    library = b"".join(bytes_field(1, part) for part in functions)
    content = b"".join(bytes_field(1, part) for part in nodes)
    return content + bytes_field(2, library) + bytes_field(4, varint_field(1, _PRODUCER))


class Info(NamedTuple):
    """An input or output of a signature."""

    tensor: str
    dtype: DType
    shape: Shape

    def message(self) -> bytes:
        """Returns a `TensorInfo`."""
        name = bytes_field(1, self.tensor.encode())
        return name + varint_field(2, self.dtype) + bytes_field(3, shape_message(self.shape))


def signature(inputs: Mapping[str, Info], outputs: Mapping[str, Info]) -> bytes:
    """Returns a `SignatureDef`."""
    parts = [
        bytes_field(number, _entry(name, info.message()))
        for number, infos in ((1, inputs), (2, outputs))
        for name, info in infos.items()
    ]
    return b"".join(parts) + bytes_field(3, _PREDICT.encode())


class Saver(NamedTuple):
    """The tensors and nodes by which a loader restores variables."""

    prefix: str
    saved: str
    restore: str
    variables: Sequence["Variable"]

    def message(self) -> bytes:
        """Returns a `SaverDef`."""
        names = (self.prefix, self.saved, self.restore)
        content = [bytes_field(number, name.encode()) for number, name in enumerate(names, 1)]
        return b"".join(content) + varint_field(7, _SAVER_V2)


class Variable(NamedTuple):
    """A variable by its tensors, and the node that gives it a value."""

    handle: str
    initializer: str
    value: str

    def message(self) -> bytes:
        """Returns a `VariableDef`."""
        content = [bytes_field(number, name.encode()) for number, name in enumerate(self, 1)]
        return b"".join(content) + varint_field(5, True) + varint_field(7, True)


def saved_model(
    graph: bytes, signatures: Mapping[str, bytes], saver: Saver | None, objects: bytes = b""
) -> bytes:
    """Returns a `SavedModel` of one `MetaGraphDef`.

    Args:
        saver: None: there are no variables.
        objects: see `objects.object_graph`; empty: of the form of TensorFlow 1.
    """
    meta = [bytes_field(1, bytes_field(4, TAG.encode())), bytes_field(2, graph)]
    if saver is not None:
        variables = b"".join(bytes_field(1, variable.message()) for variable in saver.variables)
        meta.append(bytes_field(3, saver.message()))
        meta.append(bytes_field(4, _entry(_VARIABLES, bytes_field(2, variables))))
    meta += [bytes_field(5, _entry(key, content)) for key, content in signatures.items()]
    meta += [bytes_field(7, objects)] * bool(objects)
    return varint_field(1, _SCHEMA) + bytes_field(2, b"".join(meta))


def _entry(key: str, value: bytes) -> bytes:
    return bytes_field(1, key.encode()) + bytes_field(2, value)


def graph_of(saved_model: bytes) -> bytes:
    """Returns the `GraphDef` of a `SavedModel` of one graph."""
    return bytes_of(dict(values(bytes_of(dict(values(saved_model)), 2))), 2)


class Node(NamedTuple):
    """A node of a graph that is read."""

    operator: str
    attributes: Mapping[str, bytes]
    """`AttrValue`s by name."""

    def text(self, key: str) -> bytes:
        """Returns a text among the attributes."""
        return bytes_of(dict(values(self.attributes[key])), 2)

    def array(self, key: str) -> np.ndarray:
        """Returns an array of numbers among the attributes."""
        tensor = dict(values(bytes_of(dict(values(self.attributes[key])), 8)))
        shape = [
            integer_of(dict(values(size)), 1)
            for number, size in values(bytes_of(tensor, 2))
            if number == 2 and isinstance(size, bytes)
        ]
        dtype = DTYPES[integer_of(tensor, 1)]
        return np.frombuffer(bytes_of(tensor, 4), dtype).reshape(shape)


def nodes_of(graph: bytes) -> dict[str, Node]:
    """Returns the nodes of a `GraphDef` by name."""
    nodes = {}
    for number, content in values(graph):
        if number != 1 or not isinstance(content, bytes):
            continue
        fields = list(values(content))
        entries = [
            dict(values(entry)) for key, entry in fields if key == 5 and isinstance(entry, bytes)
        ]
        attributes = {bytes_of(entry, 1).decode(): bytes_of(entry, 2) for entry in entries}
        head = dict(fields)
        nodes[bytes_of(head, 1).decode()] = Node(bytes_of(head, 2).decode(), attributes)
    return nodes
