"""Milliseconds of the operations of a `.tflite` file in LiteRT, each run alone in one thread.

    python benchmarks/tflite_operations.py runs/owls/export/tflite/model.tflite [--most 10]

LiteRT has no profile of its operations in Python. Each operation becomes a model of its own, with
its constants and random inputs. Operations of the same kind, shapes and types are measured once
and counted. The sum is near the time of the whole model: what LiteRT's delegate XNNPACK gains by
joining operations is lost. Custom operations are left out.
"""

import argparse
import copy
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as flat
from ai_edge_litert.interpreter import Interpreter
from ai_edge_litert.tools import flatbuffer_utils

from stillbox.exporting.tflite.quantization import operations_of

_ROUNDS = 6


class Kind(NamedTuple):
    """Name, shapes, types and constants of an operation; equal ones take the same time."""

    name: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    types: tuple[int, ...]
    constants: tuple[bool, ...]


def kind_of(model: flat.ModelT, name: str, operation: flat.OperatorT) -> Kind:
    """Returns the kind of an operation of the first graph."""
    tensors = model.subgraphs[0].tensors
    inputs, outputs = (
        [tensors[index] for index in places if index >= 0]
        for places in (operation.inputs, operation.outputs)
    )
    shapes = [
        tuple(tuple(map(int, () if tensor.shape is None else tensor.shape)) for tensor in group)
        for group in (inputs, outputs)
    ]
    constants = tuple(model.buffers[tensor.buffer].data is not None for tensor in inputs)
    return Kind(name, *shapes, tuple(tensor.type for tensor in inputs + outputs), constants)


def alone(model: flat.ModelT, operation: flat.OperatorT) -> bytes:
    """Returns a model of one operation of another model."""
    tensors, copied = model.subgraphs[0].tensors, copy.deepcopy(operation)
    used = list(dict.fromkeys(i for i in (*copied.inputs, *copied.outputs) if i >= 0))
    result, graph = flat.ModelT(), flat.SubGraphT()
    result.version, result.subgraphs = model.version, [graph]
    result.operatorCodes = [model.operatorCodes[copied.opcodeIndex]]
    result.buffers, graph.tensors, free = [flat.BufferT()], [], []
    for place, index in enumerate(used):
        tensor, buffer = copy.copy(tensors[index]), model.buffers[tensors[index].buffer]
        if buffer.data is not None:
            tensor.buffer = len(result.buffers)
            result.buffers.append(buffer)
        else:
            tensor.buffer = 0
            if index in operation.inputs:
                free.append(place)
        graph.tensors.append(tensor)
    places = {index: place for place, index in enumerate(used)} | {-1: -1}
    copied.opcodeIndex = 0
    copied.inputs, copied.outputs = (
        np.array([places[index] for index in group], np.int32)
        for group in (copied.inputs, copied.outputs)
    )
    graph.operators, graph.inputs, graph.outputs = (
        [copied],
        np.array(free, np.int32),
        copied.outputs,
    )
    return bytes(flatbuffer_utils.convert_object_to_bytearray(result))


def milliseconds(content: bytes) -> float:
    """Returns the shortest of several runs on random inputs, after a first one."""
    runtime = Interpreter(model_content=content, num_threads=1)
    runtime.allocate_tensors()
    rng = np.random.default_rng(0)
    for tensor in runtime.get_input_details():
        runtime.set_tensor(tensor["index"], rng.random(tensor["shape"]).astype(tensor["dtype"]))
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        runtime.invoke()
        times.append(time.perf_counter() - began)
    return 1e3 * min(times[1:])


def measure(path: Path) -> list[tuple[float, int, Kind]]:
    """Returns the milliseconds of all operations of a kind, their number and the kind."""
    model: Any = flatbuffer_utils.read_model_from_bytearray(bytearray(path.read_bytes()))
    groups: dict[Kind, list[flat.OperatorT]] = defaultdict(list)
    for name, operation in operations_of(model):
        if name != "CUSTOM":
            groups[kind_of(model, name, operation)].append(operation)
    rows = [
        (milliseconds(alone(model, operations[0])) * len(operations), len(operations), kind)
        for kind, operations in groups.items()
    ]
    return sorted(rows, key=lambda row: row[0], reverse=True)


def show(rows: Sequence[tuple[float, int, Kind]], most: int) -> None:
    """Prints the time of each name, and the rows that take longest."""
    names: dict[str, list[float]] = defaultdict(lambda: [0, 0])
    for took, count, kind in rows:
        names[kind.name][0] += took
        names[kind.name][1] += count
    print("| operations | number | ms |\n|---|---|---|")
    for name, (took, count) in sorted(names.items(), key=lambda item: -item[1][0])[:most]:
        print(f"| {name} | {count:,} | {took:.2f} |")
    print(f"| all | {sum(row[1] for row in rows):,} | {sum(row[0] for row in rows):.2f} |\n")
    print("| operation | inputs | outputs | number | ms |\n|---|---|---|---|---|")
    for took, count, kind in rows[:most]:
        shapes = (
            " ".join("x".join(map(str, shape)) for shape in group)
            for group in (kind.inputs, kind.outputs)
        )
        print(f"| {kind.name} | {' | '.join(shapes)} | {count} | {took:.2f} |")


def main() -> None:
    """Prints the tables of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL.tflite")
    parser.add_argument("--most", type=int, default=10, help="rows of each table")
    arguments = parser.parse_args()
    show(measure(arguments.model), arguments.most)


if __name__ == "__main__":
    main()
