"""The objects of a SavedModel, by which `tf.saved_model.load` returns a function to call.

The root has the variables, `__call__` and the signatures, which are one function of the library.
Without them the loader returns an object with signatures only. Source:
`tensorflow/core/protobuf/{saved_object_graph,struct,trackable_object_graph}.proto`,
`tensorflow/python/saved_model/load.py`.

The variables have the weights' paths as names, by which `--weights` reads them again.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stillbox.checkpoints.tf2 import VARIABLE
from stillbox.exporting.saved_model.graph import Graph, Tensor
from stillbox.exporting.saved_model.messages import DType, Info, Saver, Variable, shape_message
from stillbox.records.wire import bytes_field, encode_varint, varint_field


def add_variables(
    graph: Graph, arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, Tensor], Saver]:
    """Writes variables into a graph; returns their values by name, and the nodes that restore them.

    Only types and shapes of the arrays are read.
    """
    handles, values = {}, {}
    for name, array in arrays.items():
        dtype = DType.of(array.dtype)
        handles[name] = graph.node(
            *("VarHandleOp", [], [DType.RESOURCE]),
            output="resource",
            name=name,
            shared_name=name,
            dtype=dtype,
            shape=array.shape,
        )[0]
        inputs = [handles[name]]
        values[name] = graph.node("ReadVariableOp", inputs, [dtype], output="value", dtype=dtype)[0]
    return values, _add_saver(graph, handles, values)


def _add_saver(graph: Graph, handles: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Saver:
    types = [value.dtype for value in values.values()]
    path = graph.constant(b"")
    prefix = graph.node(
        *("PlaceholderWithDefault", [path], [DType.STRING]), dtype=DType.STRING, shape=()
    )[0]
    names = graph.constant([(name + VARIABLE).encode() for name in values])
    whole = graph.constant([b""] * len(values))
    save = graph.add("SaveV2", [prefix, names, whole, *values.values()], dtypes=types)
    saved = graph.op("Identity", prefix, after=[save])
    restored = graph.node("RestoreV2", [prefix, names, whole], types, dtypes=types)
    assigned = [
        graph.add("AssignVariableOp", [handle, value], dtype=value.dtype)
        for handle, value in zip(handles.values(), restored, strict=True)
    ]
    variables = [
        Variable(handle.name, node, value.name)
        for handle, node, value in zip(handles.values(), assigned, values.values(), strict=True)
    ]
    restore = graph.add("NoOp", after=assigned)
    return Saver(prefix.name, saved.name, restore, variables)


_ROOT, _CALL, _SIGNATURES, _SIGNATURE = range(4)
_FIRST_VARIABLE = 4
_VERSION = varint_field(1, 1) + varint_field(2, 1)
# Kinds of `StructuredValue` by the number of their field.
_NONE, _STRING, _TENSOR, _LIST, _TUPLE, _DICT, _NAMED = 1, 13, 33, 51, 52, 53, 54


def _message(number: int, content: bytes = b"") -> bytes:
    """Returns a field that is a message and is written even if it is empty."""
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def _sequence(kind: int, parts: Iterable[bytes] = ()) -> bytes:
    return _message(kind, b"".join(_message(1, part) for part in parts))


def _dictionary(parts: Mapping[str, bytes]) -> bytes:
    entries = (
        _message(1, bytes_field(1, key.encode()) + _message(2, part)) for key, part in parts.items()
    )
    return _message(_DICT, b"".join(entries))


def _tensor(name: str, info: Info) -> bytes:
    content = bytes_field(1, name.encode()) + _message(2, shape_message(info.shape))
    return _message(_TENSOR, content + varint_field(3, info.dtype))


def _argument_names(names: Sequence[str]) -> bytes:
    """Returns the `FullArgSpec` of a function of these arguments."""
    fields = {
        "args": _sequence(_LIST, [_message(_STRING, name.encode()) for name in names]),
        "varargs": _message(_NONE),
        "varkw": _message(_NONE),
        "defaults": _message(_NONE),
        "kwonlyargs": _sequence(_LIST),
        "kwonlydefaults": _message(_NONE),
        "annotations": _dictionary({}),
    }
    pairs = (
        _message(2, bytes_field(1, key.encode()) + _message(2, field))
        for key, field in fields.items()
    )
    return _message(_NAMED, bytes_field(1, b"FullArgSpec") + b"".join(pairs))


def _children(references: Mapping[str, int]) -> bytes:
    return b"".join(
        _message(1, varint_field(1, node) + bytes_field(2, name.encode()))
        for name, node in references.items()
    )


def _user_object(identifier: str, references: Mapping[str, int]) -> bytes:
    content = bytes_field(1, identifier.encode()) + _message(2, _VERSION)
    return _children(references) + _message(4, content)


def object_graph(
    functions: tuple[str, str],
    argument: tuple[str, Info],
    outputs: Mapping[str, Info],
    variables: Mapping[str, Info],
    signature: str,
) -> bytes:
    """Returns a `SavedObjectGraph`.

    Args:
        functions: in the library, for calls and for the signature; their arguments are the input
            and the variables in their order, their results the outputs in the order of their names.
        argument: name and type of the input.
        outputs: by name.
        variables: by the name of the edge in the checkpoint's graph.
        signature: name of the signature.
    """
    (name, given), (called, signed) = argument, functions
    numbers = {path: _FIRST_VARIABLE + index for index, path in enumerate(variables)}
    root = {**numbers, "__call__": _CALL, "signatures": _SIGNATURES}
    spec = _message(1, _argument_names([name])) + _message(5, _message(_NONE))
    nodes = [
        _user_object("_generic_user_object", root),
        _message(6, bytes_field(1, called.encode()) + _message(2, spec)),
        _user_object("signature_map", {signature: _SIGNATURE}),
        _message(
            8,
            bytes_field(1, signed.encode())
            + bytes_field(2, name.encode())
            + varint_field(3, 1)
            + _message(4, spec),
        ),
        *(
            _message(
                7,
                varint_field(1, info.dtype)
                + _message(2, shape_message(info.shape))
                + bytes_field(6, path.encode()),
            )
            for path, info in variables.items()
        ),
    ]
    tensor = _tensor(name, given)
    arguments = {
        called: (_sequence(_TUPLE, [tensor]), _dictionary({})),
        signed: (_sequence(_TUPLE), _dictionary({name: tensor})),
    }
    returned = _dictionary({key: _tensor(key, info) for key, info in sorted(outputs.items())})
    bound = b"".join(encode_varint(number) for number in numbers.values())
    content = b"".join(_message(1, node) for node in nodes)
    for function, taken in arguments.items():
        concrete = (
            _message(2, bound) + _message(3, _sequence(_TUPLE, taken)) + _message(4, returned)
        )
        content += _message(2, bytes_field(1, function.encode()) + _message(2, concrete))
    return content
