"""The weights of a graph by the paths of a model's parameters."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stillbox.checkpoints.array_files import LazyArrays
from stillbox.checkpoints.graphs.folding import Use, parameters_of
from stillbox.checkpoints.graphs.graph import GraphArrays, Layer
from stillbox.checkpoints.graphs.matching import find_departure, match_layers
from stillbox.checkpoints.graphs.traced import ModelLayer, trace_layers
from stillbox.checkpoints.weights_file import Weights
from stillbox.errors import UserError
from stillbox.experiment import schema


def match_weights(weights: Weights, model: schema.Model) -> Weights:
    """Returns the weights of a graph by the paths of a model's parameters, others as they are.

    Layers of the graph that the model lacks keep their names.

    Raises:
        UserError: the graph is damaged, or the model cannot be built.
    """
    graph = weights.arrays
    if not isinstance(graph, GraphArrays):
        return weights
    try:
        theirs = graph.layers
    except ValueError as error:
        raise UserError(f"the graph cannot be read: {error}", where=weights.path) from error
    ours = trace_layers(model)
    pairs = match_layers(ours, theirs)
    uses = defaultdict[str, list[Use]](list)
    for mine, own in pairs.items():
        uses[ours[mine].path].append(Use(ours[mine], theirs[own]))
    used = set(pairs.values())
    rest = [layer for index, layer in enumerate(theirs) if index not in used]
    arrays = MatchedArrays(weights.path, graph, list(uses.values()), rest)
    departure = find_departure(ours, theirs, pairs)
    return replace(weights, arrays=arrays, library=None, departure=departure)


class _Source(NamedTuple):
    """What a parameter is computed from."""

    shape: tuple[int, ...]
    uses: tuple[Use, ...]
    """Those of its layer's kernel; none of a kernel that the model lacks."""


class MatchedArrays(LazyArrays[_Source]):
    """Parameters by path, and the kernels that the model lacks by their names in the graph.

    Args:
        where: what the weights are read from.
        graph: holds the constants.
        layers: all uses of each kernel.
        rest: layers that the model lacks.
    """

    def __init__(
        self,
        where: str,
        graph: GraphArrays,  # type: ignore[type-arg]
        layers: Sequence[Sequence[Use]],
        rest: Sequence[Layer],
    ) -> None:
        self._where = where
        self._graph = graph
        self._parameters = lru_cache(maxsize=4)(self._compute)
        entries = {layer.name: _Source(layer.shape, ()) for layer in rest}
        for uses in layers:
            entries |= {path: _Source(shape, tuple(uses)) for path, shape in _shapes(uses)}
        self._kernels = {layer.name: layer.kernel for layer in rest}
        super().__init__(entries)

    def _read(self, name: str, entry: _Source) -> np.ndarray:
        if not entry.uses:
            return self._graph.read_kernel(self._kernels[name])
        return self._parameters(entry.uses)[name]

    def _compute(self, uses: tuple[Use, ...]) -> dict[str, np.ndarray]:
        try:
            return parameters_of(uses, self._graph)
        except ValueError as error:
            raise UserError(
                f"{uses[0].model.path} cannot be taken from {uses[0].graph.name!r}: {error}",
                where=self._where,
                fix="take the model that the graph was exported from",
            ) from error


def _shapes(uses: Sequence[Use]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the paths of a layer's parameters, with the shapes that the graph has for them."""
    model, graph = uses[0]
    same = model.shape == graph.shape
    yield model.path, model.kernel_shape if same else graph.shape
    channels = (graph.shape[-1],)
    if model.bias is not None:
        yield model.bias, channels
    for use in uses:
        for variable in _norm_variables(use.model):
            yield variable, channels


def _norm_variables(layer: ModelLayer) -> Iterator[str]:
    if layer.norm is None:
        return
    config = layer.norm.config
    wanted = {"scale": config.scale, "bias": config.center, "mean": True, "var": True}
    for name, is_there in wanted.items():
        if is_there:
            yield f"{layer.norm.path}.{name}"
