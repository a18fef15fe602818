"""A detector as flat dictionaries of arrays, keyed by dotted parameter paths.

The module object stays outside compiled functions; inside, `bind_detector` puts the arrays back.
Freezing, averaging, checkpoints and weight import work on the dictionaries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
from flax import nnx

from stillbox.models.paths import Place, places_of

Arrays = dict[str, jax.Array]
Shapes = dict[str, jax.ShapeDtypeStruct]
Module = TypeVar("Module", bound=nnx.Module)


@dataclass(frozen=True)
class Structure(Generic[Module]):
    """The static part of a detector, or of a part of one."""

    graph: nnx.GraphDef[Module]
    places: tuple[tuple[str, Place], ...]
    """The path of each variable, and its place in the module."""


def split_detector(detector: Module) -> tuple[Structure[Module], Arrays, Arrays]:
    """Returns static structure (hashable), trainable parameters and moving statistics.

    The latter two are keyed like `backbone.conv_0.kernel`.
    """
    graph, *states = nnx.split(detector, nnx.Param, nnx.BatchStat)
    places = places_of(detector)
    structure = Structure(graph, tuple(places.items()))
    params, stats = (_flatten(state, places) for state in states)
    return structure, params, stats


def bind_detector(
    structure: Structure[Module], params: Arrays | Shapes, stats: Arrays | Shapes
) -> Module:
    """Rebuilds a detector from the results of `split_detector`."""
    places = dict(structure.places)
    return nnx.merge(structure.graph, _unflatten(params, places), _unflatten(stats, places))


def read_statistics(detector: nnx.Module) -> Arrays:
    """Returns the moving statistics of a detector, which a training call has updated."""
    return _flatten(nnx.state(detector, nnx.BatchStat), places_of(detector))


def write_statistics(detector: nnx.Module, stats: Arrays) -> None:
    """Sets the moving statistics of a detector, or of a part of one."""
    nnx.update(detector, _unflatten(stats, places_of(detector)))


def _flatten(state: nnx.State, places: Mapping[str, Place]) -> Arrays:
    leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(state))
    arrays = {tuple(key.key for key in place): leaf for place, leaf in leaves}
    return {path: arrays[places[path]] for path in sorted(places) if places[path] in arrays}


def _unflatten(arrays: Arrays | Shapes, places: Mapping[str, Place]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, array in arrays.items():
        *parents, name = places[path]
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = array
    return nested
