"""The weights of a SavedModel: variables of its graph, and the nodes that save and restore them.

Their names are the weights' paths, by which `--weights` reads them again.
"""

from collections.abc import Mapping

import numpy as np

from stillbox.checkpoints.tf2 import VARIABLE
from stillbox.exporting.saved_model.graph import Graph, Tensor
from stillbox.exporting.saved_model.messages import DType, Saver, Variable


def add_variables(
    graph: Graph, arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, Tensor], Saver]:
    """Writes variables into a graph.

    Args:
        graph: gets the nodes.
        arrays: values by name; only types and shapes are read.

    Returns:
        The values by name, and what restores the variables.
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
    types = [one.dtype for one in values.values()]
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
