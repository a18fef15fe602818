"""The weights of a graph by the paths of a model's parameters, by pairing their convolutions.

Two layers are the same if the same layers stand before them and their kernels have the same shape.
Where that is true of several, such as the first layers of a box head and a class head on one map,
the layers behind them decide, and whether they lead to scores. Heads on maps that are sums of all
maps, with no convolution between, differ in nothing but their distance from the layers before them.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

import numpy as np

from stillbox.checkpoints.array_files import ArrayEntry, LazyArrays
from stillbox.checkpoints.first_layer import for_rgb
from stillbox.checkpoints.graphs import nanodet
from stillbox.checkpoints.graphs.folding import Use, parameters_of
from stillbox.checkpoints.graphs.graph import GraphArrays, Layer, part_of
from stillbox.checkpoints.graphs.traced import ModelLayer, trace_layers
from stillbox.checkpoints.weights_file import Weights
from stillbox.errors import UserError
from stillbox.experiment import schema

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class Place(NamedTuple):
    """What a layer is recognised by, besides the layers before it."""

    shape: tuple[int, ...]
    """As `graph.Layer.shape`."""
    behind: int
    """A number that is the same for equal shapes with equal layers behind them."""
    outline: int
    """The same, if channels do not count."""
    scores: bool
    """Whether the layer leads to scores."""
    deep: bool
    """Whether no end is near: networks go on where heads branch off."""

    @property
    def form(self) -> tuple[int, ...]:
        """Whether it is depthwise, and the size of its kernel."""
        return _form(self.shape)


# The sharpest first. Tests of the form alone find layers of another shape: of other classes, or of
# another number of channels.
_TESTS: tuple[Callable[[Place], Hashable], ...] = (
    lambda place: place,
    lambda place: (place.shape, place.behind),
    lambda place: (place.shape, place.outline, place.scores),
    lambda place: (place.shape, place.outline),
    lambda place: (place.shape, place.scores),
    lambda place: (place.shape, place.deep),
    lambda place: place.shape,
    lambda place: (place.form, place.outline, place.scores),
    lambda place: (place.form, place.outline),
    lambda place: (place.form, place.scores),
    lambda place: place.form,
)
_DEEP = 3


# Depth and number of a layer.
_Ranked = tuple[int, int]


def match_layers(ours: Sequence[ModelLayer], theirs: Sequence[Layer]) -> dict[int, int]:
    """Pairs layers of a model with layers of a graph, by their numbers.

    Layers without a partner are left out, as are layers that cannot be told apart. Partners have
    kernels of different shapes only where no other layer can be meant.
    """
    numbers: dict[Hashable, int] = {}
    ends = _ends_in_scores(theirs)
    our_places = _places(ours, [layer.scores for layer in ours], numbers)
    their_places = _places(theirs, ends, numbers)
    candidates = _by_sources(theirs)
    pairs: dict[int, int] = {}
    for before, group in _by_sources(ours).items():
        sources = list(_bits(before))
        if all(source in pairs for source in sources):
            image = sum(1 << pairs[source] for source in sources)
            partners = candidates.get(image, [])
            pairs |= _pair(group, partners, our_places, their_places)
            taken = set(pairs.values())
            pairs |= _pair_by_depth(
                _ranked(ours, our_places, [index for index in group if index not in pairs]),
                _ranked(theirs, their_places, [other for other in partners if other not in taken]),
            )
    return pairs


def _pair(
    ours: Sequence[int],
    theirs: Sequence[int],
    our_places: Sequence[Place],
    their_places: Sequence[Place],
) -> dict[int, int]:
    """Pairs layers that the same layers stand before, by the sharpest test first."""
    pairs: dict[int, int] = {}
    for test in _TESTS:
        taken = set(pairs.values())
        mine = _grouped((index, test(our_places[index])) for index in ours if index not in pairs)
        others = _grouped(
            (index, test(their_places[index])) for index in theirs if index not in taken
        )
        for key, indices in mine.items():
            if len(indices) == 1 == len(others.get(key, ())):
                pairs[indices[0]] = others[key][0]
    return pairs


def _pair_by_depth(
    ours: Mapping[Hashable, list[_Ranked]], theirs: Mapping[Hashable, list[_Ranked]]
) -> dict[int, int]:
    """Pairs layers that differ in nothing but their depths, the shallowest first.

    The depths themselves depend on the program that wrote a graph.
    """
    pairs: dict[int, int] = {}
    for place, mine in ours.items():
        others = theirs.get(place, [])
        distinct = all(
            len({depth for depth, _ in layers}) == len(layers) for layers in (mine, others)
        )
        if distinct and len(mine) == len(others):
            ranked = zip(sorted(mine), sorted(others), strict=True)
            pairs |= {index: partner for (_, index), (_, partner) in ranked}
    return pairs


def _ranked(
    layers: Sequence[ModelLayer | Layer], places: Sequence[Place], wanted: Iterable[int]
) -> dict[Hashable, list[_Ranked]]:
    """Returns depths and numbers of the wanted layers, by all but the channels behind them."""
    keyed = (
        ((places[index].shape, places[index].outline), (layers[index].depth, index))
        for index in wanted
    )
    return _collected(keyed)


def _by_sources(layers: Sequence[ModelLayer | Layer]) -> dict[int, list[int]]:
    return _grouped((index, layer.before) for index, layer in enumerate(layers))


def _grouped(items: Iterable[tuple[int, Key]]) -> dict[Key, list[int]]:
    return _collected((key, index) for index, key in items)


def _collected(items: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    groups: dict[Key, list[Item]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return groups


def _places(
    layers: Sequence[ModelLayer | Layer], ends: Sequence[bool], numbers: dict[Hashable, int]
) -> list[Place]:
    """Returns the place of each layer; `numbers` has those given to layers so far."""
    behind: list[list[Place]] = [[] for _ in layers]
    depths = [0] * len(layers)
    places: dict[int, Place] = {}
    for index in reversed(range(len(layers))):
        layer, following = layers[index], behind[index]
        whole = layer.shape, tuple(sorted(place.behind for place in following))
        outline = _form(layer.shape), tuple(sorted(place.outline for place in following))
        scores = any(place.scores for place in following) or (ends[index] and not following)
        behind_number, outline_number = (
            numbers.setdefault(key, len(numbers)) for key in (whole, outline)
        )
        place = Place(layer.shape, behind_number, outline_number, scores, depths[index] >= _DEEP)
        places[index] = place
        for source in _bits(layer.before):
            behind[source].append(place)
            depths[source] = max(depths[source], 1 + depths[index])
    return [places[index] for index in range(len(layers))]


def _form(shape: tuple[int, ...]) -> tuple[int, ...]:
    return len(shape), *shape[:2]


def _ends_in_scores(layers: Sequence[Layer]) -> list[bool]:
    """Returns which layers end in scores, by their names if the graph ends before the scores."""
    if any(layer.scores for layer in layers):
        return [layer.scores for layer in layers]
    # Names of operations that were merged are joined; the first is its own.
    return ["class" in layer.name.partition(";")[0].lower() for layer in layers]


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def find_departure(
    ours: Sequence[ModelLayer],
    theirs: Sequence[Layer],
    pairs: Mapping[int, int],
    places: Collection[str],
) -> str:
    """Describes the first layer at `places` that a graph lacks or has in another shape."""
    for index, layer in enumerate(ours):
        if layer.path not in places:
            continue
        if index not in pairs:
            return f"it has no convolution for {layer.path}, {list(layer.shape)}"
        shape = theirs[pairs[index]].shape
        if shape != layer.shape:
            return f"{layer.path}: {list(shape)} in the graph, {list(layer.shape)} wanted"
    return ""


def match_weights(weights: Weights, model: schema.Model, wanted: Collection[str]) -> Weights:
    """Returns the weights of a graph by the paths of a model's parameters.

    Other weights, and a graph without convolutions, are returned as they are. Layers that the model
    lacks keep their names. The departure of the graph from the model is at one of the `wanted`
    paths.

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
    same = theirs[0].shape[-2] == model.image_kind.channels
    ours = trace_layers(model if same else for_rgb(model))
    pairs = match_layers(ours, theirs)
    uses = defaultdict[str, list[Use]](list)
    for mine, partner in pairs.items():
        uses[ours[mine].path].append(Use(ours[mine], theirs[partner]))
    used = set(pairs.values())
    rest = [layer for index, layer in enumerate(theirs) if index not in used]
    compute: nanodet.Compute = partial(
        parameters_of, graph=graph, normalization=model.normalization
    )
    if graph.generator == nanodet.GENERATOR:
        compute = nanodet.in_our_order(compute, ours, model)
    arrays = MatchedArrays(weights.path, graph, uses.values(), rest, compute)
    # Heads of other classes are not another model.
    places = [path for path in wanted if path.partition(".")[0] not in model.head_parts]
    departure = find_departure(ours, theirs, pairs, set(places))
    return replace(weights, arrays=arrays, library=None, departure=departure)


class _Source(NamedTuple):
    """What a parameter is computed from."""

    shape: tuple[int, ...]
    uses: tuple[Use, ...]
    """The uses of the layer's kernel; none of a kernel that the model lacks."""
    lost: bool = False
    """Whether the parameter is a statistic of training that is no longer in the graph."""


class MatchedArrays(LazyArrays[_Source]):
    """Parameters by path, and the kernels that the model lacks by their names in the graph.

    `layers` are all uses of each kernel, `rest` the layers that the model lacks; `compute` returns
    the parameters of a layer by path, as `parameters_of`.
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

    @property
    def lost_statistics(self) -> frozenset[str]:
        """Paths of the means of batch norms that the graph has no statistics of."""
        return frozenset(path for path, entry in self.entries.items() if entry.lost)

    def _read(self, name: str, entry: _Source) -> np.ndarray:
        if not entry.uses:
            layer = self._lacking[name]
            return part_of(self._read_kernel(layer.kernel), layer.channels)
        try:
            # What is not finite is refused by the name of its parameter.
            with np.errstate(all="ignore"):
                return self._parameters(entry.uses)[name]
        except UserError:
            raise
        except ValueError as error:
            first = entry.uses[0]
            problem = f"{first.model.path} cannot be taken from {first.graph.name!r}: {error}"
            fix = "give the config of the model that was exported"
            raise UserError(problem, where=self._where, fix=fix) from error


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
