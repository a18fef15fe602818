"""Pairs the convolutions of a model with those of a graph.

Two layers are the same if the same layers stand before them and their kernels have the same shape.
Where that is true of several, such as the first layers of a box head and a class head on one map,
the layers behind them decide, and whether they lead to scores.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from stillbox.checkpoints.graphs.graph import Layer
from stillbox.checkpoints.graphs.traced import ModelLayer

Key = TypeVar("Key", bound=Hashable)


class Place(NamedTuple):
    """What a layer is recognised by, besides the layers before it."""

    shape: tuple[int, ...]
    """As `graph.Layer.shape`."""
    behind: int
    """A number that is the same for equal shapes with equal layers behind them."""
    outline: int
    """The same, if channels do not count."""
    scores: bool
    """It leads to scores."""
    deep: bool
    """It is not close to an end: networks go on where heads branch off."""

    @property
    def form(self) -> tuple[int, ...]:
        """Whether it is depthwise, and the size of its kernel."""
        return _form(self.shape)


# The sharpest first. Those of the form alone find layers of another shape: those of other classes,
# or of another number of channels.
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
        mine = _grouped((index, test(our_places[index])) for index in ours if index not in pairs)
        others = _grouped(
            (index, test(their_places[index])) for index in theirs if index not in taken
        )
        for key, found in mine.items():
            if len(found) == 1 == len(others.get(key, ())):
                pairs[found[0]] = others[key][0]
    return pairs


def _by_sources(layers: Sequence[ModelLayer | Layer]) -> dict[int, list[int]]:
    return _grouped((index, layer.before) for index, layer in enumerate(layers))


def _grouped(items: Iterable[tuple[int, Key]]) -> dict[Key, list[int]]:
    groups: dict[Key, list[int]] = {}
    for index, key in items:
        groups.setdefault(key, []).append(index)
    return groups


def _places(
    layers: Sequence[ModelLayer | Layer],
    ends: Sequence[bool],
    numbers: dict[Hashable, int],
) -> list[Place]:
    """Returns the place of each layer; `numbers` has those given to layers so far."""
    behind: list[list[Place]] = [[] for _ in layers]
    depths = [0] * len(layers)
    places: dict[int, Place] = {}
    for index in reversed(range(len(layers))):
        layer, following = layers[index], behind[index]
        whole = layer.shape, tuple(sorted(own.behind for own in following))
        outline = _form(layer.shape), tuple(sorted(own.outline for own in following))
        scores = any(own.scores for own in following) or (ends[index] and not following)
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
    """Describes the first layer of a model that a graph lacks or has in another shape, if any.

    Args:
        places: paths of the kernels that are looked at.
    """
    for index, layer in enumerate(ours):
        if layer.path not in places:
            continue
        if index not in pairs:
            return f"it has no convolution for {layer.path}, {list(layer.shape)}"
        shape = theirs[pairs[index]].shape
        if shape != layer.shape:
            return f"{layer.path}: {list(shape)} in the graph, {list(layer.shape)} wanted"
    return ""
