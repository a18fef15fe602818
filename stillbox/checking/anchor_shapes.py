"""Typical shapes of boxes, and values of the anchors' own kind that cover more boxes."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillbox.checking.anchor_overlaps import Coverage, best_overlaps, split_lattices
from stillbox.checking.data import spread_indices
from stillbox.checking.truth_boxes import Floats
from stillbox.experiment.schema import Anchors, MultiscaleAnchors, SsdAnchors
from stillbox.experiment.values import differences
from stillbox.models.anchors import anchors_per_location, build_anchors

# As many boxes decide about a suggestion; its figures are then those of all boxes.
_TRIED_ON = 4000

Doubles = NDArray[np.float64]

_CLUSTERS = 9
_ROUNDS = 100
# Quantiles of the boxes' sides that the least and the greatest scale are taken from.
_LOW, _HIGH = (0.01, 0.03, 0.06, 0.1, 0.2, 0.35), (0.8, 0.9, 0.95, 0.98, 1.0)


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """Other values of the anchors' own kind, and their coverage of the same boxes."""

    overrides: tuple[str, ...]
    """`path=value` for each field that changes."""
    anchors_per_location: tuple[int, ...]
    """Anchors at one location of each map."""
    coverage: Coverage


class Shape(NamedTuple):
    """A group of boxes of similar shape."""

    height: float
    """In pixels of the network input."""
    width: float
    """In pixels of the network input."""
    share: float
    """Part of all boxes, 0 to 1."""


def cluster_shapes(sizes: Doubles, count: int = _CLUSTERS) -> list[Shape]:
    """Groups boxes by k-means, with 1 - IoU of centred boxes as the distance (arXiv:1612.08242).

    It starts from the boxes at equal distances in the order of their areas, not from random ones.

    Args:
        sizes: `[N, 2]`, heights and widths in pixels of the network input, N at least 1.
        count: groups; fewer where there are not as many different shapes.

    Returns:
        From the smallest area to the greatest.
    """
    different = np.unique(sizes, axis=0)
    order = different[np.argsort(different.prod(axis=1), kind="stable")]
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    centers, groups = order[places], np.zeros(len(sizes), np.int64)
    for round_number in range(_ROUNDS):
        former, groups = groups, _overlaps(sizes, centers).argmax(axis=1)
        if round_number and np.array_equal(former, groups):
            break
        # A group without boxes keeps its centre.
        members = [sizes[groups == number] for number in range(len(centers))]
        centers = np.stack(
            [
                np.median(group, axis=0) if len(group) else center
                for group, center in zip(members, centers, strict=True)
            ]
        )
    shares = np.bincount(groups, minlength=len(centers)) / len(sizes)
    shapes = [
        Shape(float(height), float(width), float(share))
        for (height, width), share in zip(centers, shares, strict=True)
    ]
    return sorted((shape for shape in shapes if shape.share), key=lambda s: s.height * s.width)


def typical_ratios(shapes: Sequence[Shape], count: int) -> list[tuple[float, ...]]:
    """Returns choices of `count` aspect ratios, width over height, that represent all shapes.

    One has a ratio for each part of the boxes, the other spreads over all of them at equal
    distances. Ratios that agree to a hundredth are one.
    """
    logs = np.log([shape.width / shape.height for shape in shapes])
    order = np.argsort(logs)
    logs, weights = logs[order], np.array([shape.share for shape in shapes])[order]
    # The boxes are divided into equal parts; a shape is in that of the middle of its share.
    middles = np.cumsum(weights) - weights / 2
    parts = np.minimum((middles * count).astype(int), count - 1)
    means = [np.average(logs[parts == p], weights=weights[parts == p]) for p in np.unique(parts)]
    return [
        tuple(dict.fromkeys(np.exp(choice).round(2).tolist()))
        for choice in (means, np.linspace(logs[0], logs[-1], count))
    ]


def candidates(
    anchors: Anchors, sizes: Doubles, shapes: Sequence[Shape], image: tuple[int, int]
) -> Iterator[Anchors]:
    """Yields anchors of the same kind that fit the data; none for unknown kinds.

    They have at most as many anchors at a location as before, so that they cost no more.

    Args:
        anchors: of the experiment.
        sizes: `[N, 2]`, heights and widths of the boxes in pixels of the network input.
        shapes: `cluster_shapes` of them.
        image: height and width of the network input, in pixels.
    """
    make = _MAKERS.get(type(anchors))
    if make is None:
        return
    sides = np.sqrt(sizes.prod(axis=1))
    for changes in make(anchors, sides, image):
        described: Any = dataclasses.replace(anchors, **changes)  # type: ignore[type-var]
        yield described
        for ratios in typical_ratios(shapes, len(described.aspect_ratios)):
            yield dataclasses.replace(described, aspect_ratios=ratios)


def _ssd_changes(
    anchors: SsdAnchors, sides: Doubles, image: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    # Scale 1 is the shorter side of the image, times the base anchor.
    base = min(image) * np.sqrt(anchors.base_anchor_height * anchors.base_anchor_width)
    yield {}
    for low in np.quantile(sides, _LOW) / base:
        for high in np.quantile(sides, _HIGH) / base:
            least, greatest = (max(0.01, round(float(scale), 2)) for scale in (low, high))
            if least >= greatest:
                continue
            if anchors.scales:
                scales = np.linspace(least, greatest, anchors.num_layers).round(3)
                yield {"scales": tuple(scales.tolist())}
            elif anchors.num_layers > 1:
                yield {"min_scale": least, "max_scale": greatest}


def _multiscale_changes(
    anchors: MultiscaleAnchors, sides: Doubles, image: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    yield {}
    for side in np.quantile(sides, _LOW):
        yield {"anchor_scale": max(0.1, round(float(side) / 2**anchors.min_level, 2))}


_MAKERS: dict[type, Callable[..., Iterator[dict[str, Any]]]] = {
    SsdAnchors: _ssd_changes,
    MultiscaleAnchors: _multiscale_changes,
}


def suggest(
    anchors: Anchors,
    boxes: Floats,
    sides: Doubles,
    shapes: Sequence[Shape],
    maps: tuple[tuple[int, int], ...],
    image: tuple[int, int],
) -> tuple[Suggestion, Doubles] | None:
    """Tries candidates on some of the boxes and measures the best of them on all.

    Args:
        anchors: of the experiment.
        boxes: `[N, 4]`, normalised to the network input.
        sides: `[N, 2]`, heights and widths of the boxes in pixels of the network input.
        shapes: `cluster_shapes` of them.
        maps: height and width of every feature map.
        image: height and width of the network input, in pixels.

    Returns:
        The suggestion and, `[N]`, the best IoU of every box with it; None if nothing is better.
    """

    def overlaps(some: Anchors, with_boxes: Floats) -> Doubles:
        per_location = anchors_per_location(some, len(maps))
        return best_overlaps(
            with_boxes, split_lattices(build_anchors(some, maps, image), maps, per_location)
        )

    def cover(some: Anchors) -> Coverage:
        return Coverage.of("tried", overlaps(some, spread(boxes, _TRIED_ON)))

    now = cover(anchors)
    tried = {
        some: cover(some) for some in candidates(anchors, spread(sides, _TRIED_ON), shapes, image)
    }
    better = [some for some in tried if tried[some].exceeds(now)]
    if not better:
        return None
    # Recall alone does not change once all boxes are above .5.
    chosen = max(better, key=lambda some: tried[some].recall_50 + tried[some].mean_iou)
    changes = tuple(
        f"model.anchors.{path}={_spell(after)}" for path, _, after in differences(anchors, chosen)
    )
    best = overlaps(chosen, boxes)
    coverage = Coverage.of("suggested", best)
    return Suggestion(changes, anchors_per_location(chosen, len(maps)), coverage), best


def spread(rows: Any, count: int) -> Any:  # noqa: ANN401
    """Returns at most `count` rows of an array, evenly spread."""
    return rows[spread_indices(len(rows), count)]


def _spell(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _overlaps(sizes: Doubles, centers: Doubles) -> Doubles:
    """Returns the IoU of boxes on one centre, `[N, K]`."""
    shared = np.minimum(sizes[:, None], centers[None]).prod(axis=-1)
    union = sizes.prod(axis=1)[:, None] + centers.prod(axis=1)[None] - shared
    overlaps: Doubles = shared / union
    return overlaps
