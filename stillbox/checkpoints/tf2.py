"""Reads and writes TF2's object-based checkpoints without TensorFlow.

TensorFlow restores a variable by its place among a model's objects, which the object graph of the
checkpoint describes. In the file a variable has one key, the shortest path to it when it was
saved. The variables of a SavedModel are read too; their keys are places in lists of variables.
Source: `tensorflow/core/protobuf/trackable_object_graph.proto`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stillbox.checkpoints.array_files import LazyArrays
from stillbox.checkpoints.tf1 import BundleEntry, Tf1Checkpoint, write_tf1_checkpoint
from stillbox.errors import UserError
from stillbox.records.wire import bytes_field, bytes_of, integer_of, values, varint_field

# Objects and references together; real graphs have thousands.
_MOST_OBJECTS = 300_000
_VARIABLE = "VARIABLE_VALUE"


class _Node(NamedTuple):
    children: Mapping[str, int]
    """Number of the node by the name of the attribute or the place in a list."""
    key: str | None
    """The object's key in the file, if it is a variable."""


class ObjectGraph:
    """A serialised `TrackableObjectGraph`.

    Raises:
        ValueError: it is damaged or too large.
    """

    def __init__(self, data: bytes) -> None:
        self._left = _MOST_OBJECTS
        try:
            self._nodes = [self._read(node) for node in self._messages(data, 1)]
        except (IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"the object graph is damaged ({error})") from error

    def key(self, path: str) -> str | None:
        """Returns the key of the variable at a path from the root, such as `model/layer/kernel`."""
        node: int | None = 0
        for name in path.split("/"):
            if node is None or node >= len(self._nodes):
                return None
            node = self._nodes[node].children.get(name)
        return None if node is None or node >= len(self._nodes) else self._nodes[node].key

    def _read(self, data: bytes) -> _Node:
        children = {}
        for message in self._messages(data, 1):
            reference = dict(values(message))
            children[bytes_of(reference, 2).decode()] = integer_of(reference, 1)
        # An attribute is one tensor of an object; variables have one.
        attributes = (dict(values(message)) for message in self._messages(data, 2))
        keys = {bytes_of(attribute, 1): bytes_of(attribute, 3).decode() for attribute in attributes}
        return _Node(children, keys.get(_VARIABLE.encode()))

    def _messages(self, data: bytes, number: int) -> Iterator[bytes]:
        for field, value in values(data):
            if field == number and isinstance(value, bytes):
                self._left -= 1
                if self._left < 0:
                    raise ValueError(f"the object graph has more than {_MOST_OBJECTS:,} objects")
                yield value


def serialize_object_graph(keys: Mapping[str, str]) -> bytes:
    """Writes the graph of variables; `keys` are those in the file by path of objects."""
    children: list[dict[str, int]] = [{}]
    variables: dict[int, str] = {}
    for path, key in keys.items():
        node = 0
        for name in path.split("/"):
            if name not in children[node]:
                children[node][name] = len(children)
                children.append({})
            node = children[node][name]
        variables[node] = key
    nodes = (_serialize(edges, variables.get(node)) for node, edges in enumerate(children))
    return b"".join(bytes_field(1, node) for node in nodes)


def _serialize(children: Mapping[str, int], key: str | None) -> bytes:
    references = (
        bytes_field(1, varint_field(1, node) + bytes_field(2, name.encode()))
        for name, node in children.items()
    )
    if key is None:
        return b"".join(references)
    variable = bytes_field(1, _VARIABLE.encode()) + bytes_field(3, key.encode())
    return b"".join(references) + bytes_field(2, variable)


OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Key of the graph, which TF1 checkpoints do not have."""
VARIABLE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""Follows the path of a variable in its key."""


class Tf2Checkpoint(LazyArrays[BundleEntry]):
    """The variables of a checkpoint with an object graph, by the path that is their key in it.

    Raises:
        UserError: the graph is damaged.
    """

    def __init__(self, bundle: Tf1Checkpoint) -> None:
        self._bundle = bundle
        graph = bundle.read_text(OBJECT_GRAPH)
        try:
            self._graph = ObjectGraph(graph)
        except ValueError as error:
            problem = f"the checkpoint cannot be read: {error}"
            raise UserError(problem, where=bundle.prefix, fix="copy the files again") from error
        variables = {
            key.removesuffix(VARIABLE): entry
            for key, entry in bundle.entries.items()
            if key.endswith(VARIABLE)
        }
        super().__init__(variables)

    def find(self, path: str) -> str:
        """Returns the name here of the variable that a path of objects leads to, else the path."""
        key = self._graph.key(path)
        return path if key is None else key.removesuffix(VARIABLE)

    def _read(self, name: str, entry: BundleEntry) -> np.ndarray:
        return self._bundle[name + VARIABLE]


def write_tf2_checkpoint(
    prefix: str | Path, arrays: Mapping[str, np.ndarray], *, counted: bool = True
) -> None:
    """Writes variables, replacing a checkpoint of that prefix, as `ckpt-1`; its folder exists.

    `arrays` are by path of objects, such as `model/layer/kernel`; their types as in TF1
    checkpoints. With `counted` the file has the number of times that it was saved, as TensorFlow's
    own checkpoints; the variables of a SavedModel have none.
    """
    counter = {"save_counter": np.ones((), np.int64)} if counted else {}
    keys = {path: path + VARIABLE for path in (*arrays, *counter)}
    keyed = {keys[path]: array for path, array in (*arrays.items(), *counter.items())}
    write_tf1_checkpoint(prefix, keyed | {OBJECT_GRAPH: serialize_object_graph(keys)})
