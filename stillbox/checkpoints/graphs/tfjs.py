"""Reads graph models of TensorFlow.js without TensorFlow.

`model.json` holds the graph and a manifest of the weights, which lie one after the other in the
bytes of a group of shards. Quantised weights are half floats, or integers with a factor and an
offset. Source: `tfjs-core/src/io/{types,io_utils}.ts`, `tfjs-converter/python/tensorflowjs/
{write_weights,quantization}.py`, `tensorflow/core/framework/{graph,node_def,attr_value}.proto`.
"""

import base64
import binascii
import json
import math
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from io import BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np

from stillbox.checkpoints.files import MAX_WEIGHTS_BYTES, damage_of, refuse_other_content
from stillbox.checkpoints.graphs.graph import GraphArrays
from stillbox.checkpoints.graphs.operations import MOST_OPERATIONS, Operation
from stillbox.checkpoints.graphs.tensorflow import Node, operations_of
from stillbox.errors import UserError
from stillbox.untrusted import open_untrusted, read_untrusted

MODEL_JSON = "model.json"
"""Name of a graph's file; its shards lie beside it."""
# The graph of a detector takes a megabyte.
_MOST_JSON_BYTES = 2**26
_MOST_AXES = 8
# A head divides its result into boxes and classes.
_MOST_PARTS = 64
# Each is opened for its size. Converters write shards of 4 MiB.
_MOST_SHARDS = 10_000
_DTYPES = {"float32": "<f4", "int32": "<i4", "bool": "u1", "complex64": "<c8"}
_STORED = {"float16": "<f2", "uint8": "u1", "uint16": "<u2"}
# What JSON of other types than the format's can raise.
_NO_GRAPH = "weights without a graph, as in weights_manifest.json; model.json has the graph too"
# A shard of a few numbers may begin like anything else, longer ones by chance never.
_POINTER_BYTES = 200
_ERRORS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
_COPY = "copy the whole folder again: model.json and all its shards"


class _Shards(NamedTuple):
    """The files of a group; their bytes are one sequence."""

    paths: tuple[Path, ...]
    sizes: tuple[int, ...]


class _Weight(NamedTuple):
    """Place of an array in the bytes of its group."""

    shards: _Shards
    start: int
    dtype: np.dtype
    shape: tuple[int, ...]
    scale: float
    offset: float
    is_weight: bool
    """Whether the array is of floating point and has values."""

    @property
    def end(self) -> int:
        """The last byte, exclusive."""
        return self.start + math.prod(self.shape) * self.dtype.itemsize


class TfjsModel(GraphArrays[_Weight]):
    """The constants of floating point of a `model.json`; their values are read on access.

    Raises:
        UserError: it is damaged or of another format, a shard is missing, lies elsewhere or is
            shorter than the weights in it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        text = read_untrusted(path, most=_MOST_JSON_BYTES)
        try:
            document = json.loads(text)
            if isinstance(document, list) or not document.get("modelTopology", True):
                raise ValueError(_NO_GRAPH)
            kind = document.get("format", "graph-model")
            if kind != "graph-model":
                problem = f"the model of TensorFlow.js is of the format {str(kind)[:40]!r}"
                fix = "convert it with `tensorflowjs_converter --output_format=tfjs_graph_model`"
                raise UserError(problem, where=str(path), fix=fix)
            self._nodes = document["modelTopology"]["node"]
            self.generator = str(document.get("generatedBy"))
            groups = document["weightsManifest"]
            if sum(len(group["paths"]) for group in groups) > _MOST_SHARDS:
                raise ValueError(f"it has more than {_MOST_SHARDS:,} shards")
            weights = [pair for group in groups for pair in _weights(group, path.parent)]
        except UserError:
            raise
        except _ERRORS as error:
            raise self._damaged(error) from error
        entries = {name: weight for name, weight in weights if weight.is_weight}
        self._others = {name: weight for name, weight in weights if not weight.is_weight}
        super().__init__(entries)

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """The nodes of the graph."""
        try:
            if len(self._nodes) > MOST_OPERATIONS:
                raise ValueError(f"it has more than {MOST_OPERATIONS:,} nodes")
            nodes = map(_node, self._nodes)
            return operations_of([node._replace(sizes=self._sizes(node)) for node in nodes])
        except _ERRORS as error:
            raise self._damaged(error) from error

    def _sizes(self, node: Node) -> tuple[int, ...]:
        """Returns the lengths of the results, if the node divides its first input by constants."""
        name = "".join(node.inputs[1:2]) if node.operation == "SplitV" else ""
        sizes = self._others.get(name)
        if sizes is None or len(sizes.shape) != 1 or sizes.shape[0] > _MOST_PARTS:
            return ()
        lengths: list[int] = self._read(name, sizes).astype(int).tolist()
        return tuple(lengths) if min(lengths, default=0) > 0 else ()

    def _read(self, name: str, entry: _Weight) -> np.ndarray:
        data = b"".join(self._pieces(entry))
        if len(data) != entry.end - entry.start:
            problem = f"the values of {name!r} are cut off"
            raise UserError(problem, where=str(self._path), fix=_COPY)
        stored = np.frombuffer(data, entry.dtype).reshape(entry.shape)
        if entry.dtype.kind == "f":
            return stored
        # What is not finite is refused by the name of its parameter.
        with np.errstate(over="ignore", invalid="ignore"):
            values = stored * np.float32(entry.scale) + np.float32(entry.offset)
        return values.astype(np.float32)

    def _pieces(self, entry: _Weight) -> Iterator[bytes]:
        """Yields the parts of an array, which may lie in several shards."""
        first = 0
        for path, size in zip(*entry.shards, strict=True):
            start, end = max(entry.start - first, 0), min(entry.end - first, size)
            first += size
            if start < end:
                with _open(path, self._path.parent) as file:
                    file.seek(start)
                    yield file.read(end - start)

    def _damaged(self, error: Exception) -> UserError:
        missing = isinstance(error, KeyError)
        problem = f"{error} is missing" if missing else damage_of(error)
        problem = f"the file is damaged or no graph model of TensorFlow.js: {problem}"
        return UserError(problem, where=str(self._path), fix=_COPY)


def _open(path: Path, folder: Path) -> BufferedReader:
    return open_untrusted(path, most=MAX_WEIGHTS_BYTES, inside=folder, fix=_COPY)


def _weights(group: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, _Weight]]:
    """Yields names and places of the weights in a group of shards."""
    shards = _measure(group["paths"], folder)
    held, start = sum(shards.sizes), 0
    for description in group["weights"]:
        name = description["name"]
        if not isinstance(name, str):
            raise ValueError(f"a weight is named {str(name)[:40]}")
        weight = _weight(description, shards, start)
        start = weight.end
        if start > held:
            raise ValueError(f"its shards have {held:,} bytes, and {name!r} ends at {start:,}")
        yield name, weight


def _weight(description: Mapping[str, Any], shards: _Shards, start: int) -> _Weight:
    name, dtype, shape = (description[key] for key in ("name", "dtype", "shape"))
    axes_sound = all(type(axis) is int and axis >= 0 for axis in shape)
    if not axes_sound or len(shape) > _MOST_AXES:
        raise ValueError(f"{name!r} has the shape {str(shape)[:80]}")
    quantization = description.get("quantization")
    if quantization is None:
        if dtype not in _DTYPES:
            raise ValueError(f"{name!r} is of type {str(dtype)[:40]!r}, which is not supported")
        stored, scale, offset = _DTYPES[dtype], 1.0, 0.0
    else:
        kind = quantization["dtype"]
        if kind not in _STORED:
            raise ValueError(f"{name!r} is quantised to {str(kind)[:40]!r}, not supported")
        stored = _STORED[kind]
        halves = kind == "float16"
        scale = 1.0 if halves else float(quantization["scale"])
        offset = 0.0 if halves else float(quantization["min"])
    # The axes of an array without values may have any length.
    is_weight = dtype == "float32" and all(shape)
    return _Weight(shards, start, np.dtype(stored), tuple(shape), scale, offset, is_weight)


def _measure(names: list[str], folder: Path) -> _Shards:
    """Returns the files of a group and their sizes; all lie in the folder of `model.json`."""
    for name in names:
        path, windows = PurePosixPath(name), PureWindowsPath(name)
        leads_out = path.is_absolute() or windows.anchor or {"..", "\0"} & {*windows.parts, *name}
        if leads_out or not path.parts:
            raise ValueError(f"its shard {str(name)[:80]!r} lies outside of its folder")
    sizes = []
    for name in names:
        with _open(folder / name, folder) as file:
            sizes.append(os.fstat(file.fileno()).st_size)
        if sizes[-1] <= _POINTER_BYTES:
            refuse_other_content(folder / name)
    return _Shards(tuple(folder / name for name in names), tuple(sizes))


def _node(node: Mapping[str, Any]) -> Node:
    """Returns a node of the JSON form of a `GraphDef`, in which bytes are in base64."""
    name, inputs, attributes = node["name"], node.get("input", ()), node.get("attr", {})
    if not all(isinstance(text, str) for text in (name, node["op"], *inputs)):
        raise ValueError(f"the node {str(name)[:40]!r} has other names than texts")
    fused = attributes.get("fused_ops", {}).get("list", {}).get("s", ())
    epsilon = attributes.get("epsilon", {}).get("f")
    epsilon = None if epsilon is None else float(epsilon)
    return Node(name, node["op"], tuple(inputs), tuple(map(_text, fused)), epsilon)


def _text(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{encoded[:40]!r} is no text") from error
