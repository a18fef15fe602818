"""Pairs the convolutions of a model with those of a graph.

Two layers are the same if the same layers stand before them and their kernels have the same shape.
Where that is true of several, such as the first layers of a box head and a class head on one map,
the layers behind them decide, and whether they lead to scores.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from stillbox.checkpoints.graphs.graph import Layer
from stillbox.checkpoints.graphs.traced import ModelLayer


class Place(NamedTuple):
    """What a layer is recognised by, besides the layers before it."""

    shape: tuple[int, ...]
    """As `graph.Layer.shape`."""
    behind: int
    """A number that is the same for equal layers with equal layers behind them."""
    scores: bool
    """It leads to scores."""

    @property
    def form(self) -> tuple[int, ...]:
        """Whether it is depthwise, and the size of its kernel."""
        return len(self.shape), *self.shape[:2]


_TESTS: tuple[Callable[[Place], Hashable], ...] = (
    lambda place: place,
    lambda place: (place.shape, place.behind),
    lambda place: (place.shape, place.scores),
    lambda place: place.shape,
    # Other shapes are left: those of other classes, or of another number of channels.
    lambda place: (place.form, place.scores),
    lambda place: place.form,
)


def match_layers(ours: Sequence[ModelLayer], theirs: Sequence[Layer]) -> dict[int, int]:
    """Pairs layers of a model with those of a graph, by their numbers.

    Layers without a partner are left out, and those that cannot be told apart. Partners have
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
            pairs |= _pair(group, candidates.get(image, []), our_places, their_places)
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
        mine, others = defaultdict[Hashable, list[int]](list), defaultdict[Hashable, list[int]](list)
        for index in ours:
            if index not in pairs:
                mine[test(our_places[index])].append(index)
        for index in theirs:
            if index not in taken:
                others[test(their_places[index])].append(index)
        for key, found in mine.items():
            if len(found) == 1 == len(others[key]):
                pairs[found[0]] = others[key][0]
    return pairs


def _by_sources(layers: Sequence[ModelLayer] | Sequence[Layer]) -> dict[int, list[int]]:
    groups = defaultdict[int, list[int]](list)
    for index, layer in enumerate(layers):
        groups[layer.before].append(index)
    return groups


def _places(
    layers: Sequence[ModelLayer] | Sequence[Layer],
    ends: Sequence[bool],
    numbers: dict[Hashable, int],
) -> list[Place]:
    """Returns the place of each layer; `numbers` has those given to layers so far."""
    behind: list[list[int]] = [[] for _ in layers]
    scores = [False] * len(layers)
    places: dict[int, Place] = {}
    for index in reversed(range(len(layers))):
        layer = layers[index]
        key = layer.shape, tuple(sorted(behind[index]))
        number = numbers.setdefault(key, len(numbers))
        scores[index] = scores[index] or (ends[index] and not behind[index])
        places[index] = Place(layer.shape, number, scores[index])
        for source in _bits(layer.before):
            behind[source].append(number)
            scores[source] = scores[source] or scores[index]
    return [places[index] for index in range(len(layers))]


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
    ours: Sequence[ModelLayer], theirs: Sequence[Layer], pairs: Mapping[int, int]
) -> str:
    """Describes the first layer of a model that the graph lacks or has in another shape."""
    for index, layer in enumerate(ours):
        if not all(source in pairs for source in _bits(layer.before)):
            continue
        partner = theirs[pairs[index]] if index in pairs else None
        if partner is None:
            return f"{layer.path} {list(layer.shape)} has no counterpart"
        if partner.shape != layer.shape:
            return f"{layer.path} {list(layer.shape)} is {list(partner.shape)} there"
    return ""
