"""Small graphs of TensorFlow, TensorFlow.js and TFLite, for tests and for the fuzzer."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import flatbuffers
import numpy as np

from stillbox.exporting.tflite.metadata import _Table, _write
from stillbox.records.wire import bytes_field, varint_field

Stored = Literal["float32", "float16", "uint8", "uint16", "int8"]


class Node(NamedTuple):
    """An operation by its name in TensorFlow; its result has its name."""

    operation: str
    name: str
    inputs: Sequence[str]
    fused: Sequence[str] = ()
    epsilon: float = 0.0


def tfjs(
    nodes: Sequence[Node],
    constants: Mapping[str, np.ndarray],
    stored: Stored = "float32",
    shards: int = 1,
) -> dict[str, bytes]:
    """Returns the files of a graph model by name: `model.json` and shards of equal sizes."""
    weights, data = [], b""
    for name, array in constants.items():
        counts = array.dtype == np.int32
        values, quantization = (array, {}) if counts else _quantized(array, stored)
        dtype = "int32" if counts else "float32"
        weight: dict[str, object] = {"name": name, "shape": list(array.shape), "dtype": dtype}
        weights.append({**weight, **quantization})
        data += values.tobytes()
    size = -(-len(data) // shards)
    paths = [f"group1-shard{number + 1}of{shards}.bin" for number in range(shards)]
    topology: list[dict[str, object]]
    topology = [{"name": name, "op": "Const", "attr": {}} for name in constants]
    topology += [_json_node(node) for node in nodes]
    document = {
        "format": "graph-model",
        "modelTopology": {"node": topology},
        "weightsManifest": [{"paths": paths, "weights": weights}],
    }
    files = {name: data[at * size : (at + 1) * size] for at, name in enumerate(paths)}
    return {"model.json": json.dumps(document).encode(), **files}


def frozen(nodes: Sequence[Node], constants: Mapping[str, np.ndarray]) -> bytes:
    """Returns a `GraphDef` with constants of float32, field by field as in `tensor.proto`."""
    data = b"".join(_constant_node(name, array) for name, array in constants.items())
    for node in nodes:
        content = bytes_field(1, node.name.encode()) + bytes_field(2, node.operation.encode())
        content += b"".join(bytes_field(3, name.encode()) for name in node.inputs)
        fused = b"".join(bytes_field(2, name.encode()) for name in node.fused)
        attribute = bytes_field(1, b"fused_ops") + bytes_field(2, bytes_field(1, fused))
        data += bytes_field(1, content + bytes_field(5, attribute))
    return data


def _constant_node(name: str, array: np.ndarray) -> bytes:
    axes = b"".join(bytes_field(2, varint_field(1, axis)) for axis in array.shape)
    tensor = varint_field(1, 1) + bytes_field(2, axes)
    tensor += bytes_field(4, array.astype("<f4").tobytes())
    value = bytes_field(1, b"value") + bytes_field(2, bytes_field(8, tensor))
    content = bytes_field(1, name.encode()) + bytes_field(2, b"Const") + bytes_field(5, value)
    return bytes_field(1, content)


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Writes files into a folder and returns the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder / next(iter(files))


def _json_node(node: Node) -> dict[str, object]:
    fused = [base64.b64encode(name.encode()).decode() for name in node.fused]
    attributes: dict[str, object] = {"fused_ops": {"list": {"s": fused}}} if fused else {}
    if node.epsilon:
        attributes["epsilon"] = {"f": node.epsilon}
    return {
        "name": node.name,
        "op": node.operation,
        "input": list(node.inputs),
        "attr": attributes,
    }


def _quantized(array: np.ndarray, stored: Stored) -> tuple[np.ndarray, dict[str, object]]:
    """Returns values and their description, as `tensorflowjs/quantization.py` does."""
    if stored == "float32":
        return array.astype("<f4"), {}
    if stored == "float16":
        return array.astype("<f2"), {"quantization": {"dtype": "float16"}}
    low, high = float(array.min()), float(array.max())
    scale = (high - low) / np.iinfo(stored).max or 1.0
    values = np.round((array - low) / scale).astype(stored)
    return values, {"quantization": {"dtype": stored, "scale": scale, "min": low}}


_CODES = {
    "AddV2": 0, "Conv2D": 3, "DepthwiseConv2dNative": 4, "Dequantize": 6, "Sigmoid": 14, "Mul": 18,
    "Relu6": 21,
}  # fmt: skip
_TYPES = {"float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int8": 9}
_SIGNED_RELU6 = np.int8(3)


def tflite(
    nodes: Sequence[Node], constants: Mapping[str, np.ndarray], stored: Stored = "float32"
) -> bytes:
    """Returns a model; kernels are `[kh, kw, in, out]`, of depthwise ones `[k, k, C, 1]`.

    Kernels are integers of 8 bits, `int8` by channel or `uint8` by tensor, with biases of 32 bits;
    half floats are followed by operations that convert them.
    """
    names = [
        *constants,
        *dict.fromkeys(tensor for node in nodes for tensor in (*node.inputs, node.name)),
    ]
    names = list(dict.fromkeys(names))
    halves = {name: f"{name}_half" for name in constants if stored == "float16"}
    if halves:
        names += halves.values()
        converted = [Node("Dequantize", name, [half]) for name, half in halves.items()]
        nodes = [*converted, *nodes]
        constants = {halves[name]: array for name, array in constants.items()}
    depthwise = {node.inputs[1] for node in nodes if node.operation == "DepthwiseConv2dNative"}
    tensors: list[_Table] = []
    # The first buffer is empty: computed tensors refer to it.
    buffers: list[_Table] = [{0: np.zeros(0, np.uint8)}]
    for name in names:
        if name in constants:
            tensor, data = _constant(name, constants[name], stored, name in depthwise)
            tensors.append({**tensor, 2: np.uint32(len(buffers))})
            buffers.append({0: data})
        else:
            tensors.append({3: name})
    operators = [_operator(node, names) for node in nodes]
    codes: list[_Table] = [
        {0: np.int8(code), 3: np.int32(code)} for code in dict.fromkeys(_CODES.values())
    ]
    graph: _Table = {0: list(tensors), 3: list(operators)}
    model: _Table = {0: np.uint32(3), 1: list(codes), 2: [graph], 4: list(buffers)}
    builder = flatbuffers.Builder(4096)
    builder.Finish(_write(builder, model), b"TFL3")
    return bytes(builder.Output())


def _operator(node: Node, names: Sequence[str]) -> _Table:
    places = [names.index(name) for name in node.inputs]
    index = list(_CODES.values()).index(_CODES[node.operation])
    table: dict[int, object] = {
        0: np.uint32(index),
        1: np.array(places, np.int32),
        2: np.array([names.index(node.name)], np.int32),
    }
    if "Relu6" in node.fused:
        field = 4 if node.operation == "DepthwiseConv2dNative" else 3
        table |= {3: np.uint8(1), 4: {field: _SIGNED_RELU6}}
    return table  # type: ignore[return-value]


def _constant(
    name: str, array: np.ndarray, stored: Stored, depthwise: bool
) -> tuple[_Table, np.ndarray]:
    """Returns the fields of a tensor but for its buffer, and the buffer's bytes."""
    if array.ndim == 4:
        array = array.transpose(3, 0, 1, 2)
    quantization: dict[int, object] = {}
    values = array.astype("<f2" if stored == "float16" else "<f4")
    if stored in ("int8", "uint8"):
        values, quantization = _integers(array, stored, depthwise)
    tensor: dict[int, object] = {
        0: np.array(array.shape, np.int32),
        1: np.int8(_TYPES[values.dtype.name]),
        3: name,
    }
    if quantization:
        tensor[4] = quantization
    return tensor, np.frombuffer(values.tobytes(), np.uint8)  # type: ignore[return-value]


def _integers(
    array: np.ndarray, stored: Stored, depthwise: bool
) -> tuple[np.ndarray, dict[int, object]]:
    if array.ndim < 4:
        scale = np.abs(array).max() / 2**30 or 1.0
        values = np.round(array / scale).astype("<i4")
        return values, {2: np.array([scale], np.float32), 3: np.zeros(1, np.int64)}
    if stored == "uint8":
        low, high = min(array.min(), 0.0), max(array.max(), 0.0)
        scale = (high - low) / 255
        zero = np.round(-low / scale)
        values = np.clip(np.round(array / scale) + zero, 0, 255).astype(np.uint8)
        return values, {2: np.array([scale], np.float32), 3: np.array([zero], np.int64)}
    axis = 3 if depthwise else 0
    others = tuple(other for other in range(4) if other != axis)
    scales = np.maximum(np.abs(array).max(others, keepdims=True), 1e-9) / 127
    values = np.round(array / scales).astype(np.int8)
    zeros = np.zeros(scales.size, np.int64)
    return values, {
        2: scales.ravel().astype(np.float32),
        3: zeros,
        6: np.int32(axis),
    }


# The first layers of MobileNet v1, with a norm that is folded and one that is not.
_CONSTANTS = {
    "k0": np.ones((3, 3, 3, 16)),
    "k1": np.ones((3, 3, 16, 1)),
    "k2": np.ones((1, 1, 16, 32)),
    "b0": np.zeros(16),
    "b2": np.arange(32.0),
}
_NODES = [
    Node("Conv2D", "a", ["x", "k0", "b0"], ["BiasAdd", "Relu6"]),
    Node("DepthwiseConv2dNative", "b", ["a", "k1"]),
    Node("AddV2", "c", ["b", "b0"]),
    Node("Relu6", "d", ["c"]),
    Node("Conv2D", "e", ["d", "k2", "b2"], ["BiasAdd"]),
    Node("Sigmoid", "f", ["e"]),
]
_NORM = Node("FusedBatchNormV3", "c", ["b", "b0", "b0", "b0", "b0"], (), 0.01)
_STORED: tuple[Stored, ...] = ("float32", "float16", "uint8")


def tfjs_shards() -> dict[str, bytes]:
    """Returns the shard that all files of `tfjs_seeds` name."""
    return {name: data for name, data in tfjs(_NODES, _CONSTANTS).items() if name != "model.json"}


def tfjs_seeds(folder: Path) -> Sequence[bytes]:
    """Returns `model.json` of a folded graph and of one with a norm."""
    graphs = [(_NODES, stored) for stored in _STORED]
    graphs.append(([_NORM if node.name == "c" else node for node in _NODES], "float32"))
    return [tfjs(nodes, _CONSTANTS, stored)["model.json"] for nodes, stored in graphs]


def tflite_seeds(folder: Path) -> Sequence[bytes]:
    """Returns models of a folded graph."""
    return [tflite(_NODES, _CONSTANTS, stored) for stored in (*_STORED, "int8")]
