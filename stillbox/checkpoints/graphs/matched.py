"""The weights of a graph by the paths of a model's parameters."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from stillbox.checkpoints.array_files import ArrayEntry, LazyArrays
from stillbox.checkpoints.graphs.folding import Use, parameters_of
from stillbox.checkpoints.graphs.graph import GraphArrays, Layer
from stillbox.checkpoints.graphs.matching import find_departure, match_layers
from stillbox.checkpoints.graphs.traced import ModelLayer, trace_layers
from stillbox.checkpoints.weights_file import Weights
from stillbox.errors import UserError
from stillbox.experiment import schema


def match_weights(weights: Weights, model: schema.Model, wanted: Collection[str]) -> Weights:
    """Returns the weights of a graph by the paths of a model's parameters.

    Other weights, and those of a graph without convolutions, are returned as they are. Layers that
    the model lacks keep their names.

    Args:
        weights: those of a file.
        model: what is to take them.
        wanted: paths that the departure of the graph from the model may be at.

    Raises:
        UserError: the graph is damaged, or the model cannot be built.
    """
    graph = weights.arrays
    if not isinstance(graph, GraphArrays):
        return weights
    try:
        theirs = graph.layers
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"the graph cannot be read: {error}", where=weights.path) from error
    if not theirs:
        return weights
    ours = trace_layers(model)
    pairs = match_layers(ours, theirs)
    uses = defaultdict[str, list[Use]](list)
    for mine, own in pairs.items():
        uses[ours[mine].path].append(Use(ours[mine], theirs[own]))
    used = set(pairs.values())
    rest = [layer for index, layer in enumerate(theirs) if index not in used]
    compute = partial(parameters_of, graph=graph, normalization=model.normalization)
    arrays = MatchedArrays(weights.path, graph, uses.values(), rest, compute)
    # Heads of other classes are not another model.
    places = [path for path in wanted if path.partition(".")[0] not in model.head_parts]
    departure = find_departure(ours, theirs, pairs, set(places))
    return replace(weights, arrays=arrays, library=None, departure=departure)


class _Source(NamedTuple):
    """What a parameter is computed from."""

    shape: tuple[int, ...]
    uses: tuple[Use, ...]
    """Those of its layer's kernel; none of a kernel that the model lacks."""
    lost: bool = False
    """It is a statistic of training that is no longer in the graph."""


class MatchedArrays(LazyArrays[_Source]):
    """Parameters by path, and the kernels that the model lacks by their names in the graph.

    Args:
        where: what the weights are read from.
        graph: holds the constants.
        layers: all uses of each kernel.
        rest: layers that the model lacks.
        compute: returns the parameters of a layer by path, as `parameters_of`.
    """

    def __init__(
        self,
        where: str,
        graph: GraphArrays[ArrayEntry],
        layers: Iterable[Sequence[Use]],
        rest: Iterable[Layer],
        compute: Callable[[tuple[Use, ...]], dict[str, np.ndarray]],
    ) -> None:
        self._where = where
        self._lacking = {layer.name: layer for layer in rest}
        self._read_kernel = graph.read_kernel
        # The parameters of a layer are asked for one after the other.
        self._parameters = lru_cache(maxsize=4)(compute)
        entries = {name: _Source(layer.shape, ()) for name, layer in self._lacking.items()}
        for uses in layers:
            folded = any([step.kind for step in use.graph.steps] != ["norm"] for use in uses)
            for path, shape in _shapes(uses):
                entries[path] = _Source(shape, tuple(uses), folded and path.endswith(".mean"))
        super().__init__(entries)

    def count_folded(self, paths: Iterable[str]) -> int:
        """Counts the batch norms among paths whose statistics are lost."""
        return sum(self.entries[path].lost for path in paths)

    def _read(self, name: str, entry: _Source) -> np.ndarray:
        if not entry.uses:
            return self._read_kernel(self._lacking[name].kernel)
        try:
            # What is not finite is refused by the name of its parameter.
            with np.errstate(all="ignore"):
                return self._parameters(entry.uses)[name]
        except UserError:
            raise
        except ValueError as error:
            first = entry.uses[0]
            raise UserError(
                f"{first.model.path} cannot be taken from {first.graph.name!r}: {error}",
                where=self._where,
                fix="give the config of the model that was exported",
            ) from error


def _shapes(uses: Sequence[Use]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the paths of a layer's parameters, with the shapes that the graph has for them."""
    model, graph = uses[0]
    yield model.path, uses[0].kernel_shape
    channels = (graph.shape[-1],)
    # What follows a kernel of other inputs is of no use either, and its shape does not show it.
    if model.shape == graph.shape or model.shape[-1] != graph.shape[-1]:
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
