"""A detector as flat dictionaries of arrays, keyed by dotted parameter paths.

The module object stays outside compiled functions; inside, `bind_detector` puts the arrays back.
Freezing, averaging, checkpoints and weight import work on the dictionaries.
"""

from typing import Any, TypeVar

import jax
from flax import nnx

Arrays = dict[str, jax.Array]
Shapes = dict[str, jax.ShapeDtypeStruct]
Module = TypeVar("Module", bound=nnx.Module)


def split_detector(detector: Module) -> tuple[nnx.GraphDef[Module], Arrays, Arrays]:
    """Returns static graph (hashable), trainable parameters and moving statistics of a detector.

    The latter two are keyed like `backbone.conv_0.kernel`.
    """
    graph, *states = nnx.split(detector, nnx.Param, nnx.BatchStat)
    params, stats = map(_flatten, states)
    return graph, params, stats


def bind_detector(
    graph: nnx.GraphDef[Module], params: Arrays | Shapes, stats: Arrays | Shapes
) -> Module:
    """Rebuilds a detector from the results of `split_detector`."""
    return nnx.merge(graph, _unflatten(params), _unflatten(stats))


def read_statistics(detector: nnx.Module) -> Arrays:
    """Returns the moving statistics of a detector, which a training call has updated."""
    return _flatten(nnx.state(detector, nnx.BatchStat))


def write_statistics(detector: nnx.Module, stats: Arrays) -> None:
    """Sets the moving statistics of a detector, or of a part of one."""
    nnx.update(detector, _unflatten(stats))


def _flatten(state: nnx.State) -> Arrays:
    flat = nnx.to_pure_dict(state)
    leaves = jax.tree_util.tree_leaves_with_path(flat)
    return {".".join(str(key.key) for key in path): leaf for path, leaf in leaves}


def _unflatten(arrays: Arrays | Shapes) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, array in arrays.items():
        *parents, name = path.split(".")
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = array
    return nested
