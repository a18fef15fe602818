"""Overlaps of anchors and boxes, and anchors of the same kind that cover more boxes.

Overlaps are computed for all pairs, and faster where only the best anchor counts. Suggestions
start from typical shapes of the boxes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stillbox.checking.data import Float32Array, TruthBoxes
from stillbox.evaluation.results import iou_matrix
from stillbox.experiment.schema import Anchors, MultiscaleAnchors, SsdAnchors
from stillbox.experiment.updating import Changes
from stillbox.experiment.values import differences
from stillbox.models.anchors import anchors_per_location, build_anchors
from stillbox.records.source import spread_indices

Float64Array = NDArray[np.float64]
Scalar = TypeVar("Scalar", bound=np.generic)
# Pairs in memory at once: a few arrays of 16 MB.
_PAIRS = 2**22


@dataclass(frozen=True)
class Coverage:
    """How well anchors cover a group of boxes."""

    name: str
    """Name of the group of boxes."""
    boxes: int
    recall_40: float
    """Part of the boxes that some anchor overlaps with an IoU of at least .4."""
    recall_50: float
    """The same at .5."""
    mean_iou: float
    """Mean over the boxes of the IoU with their best anchor."""

    @classmethod
    def of(cls, name: str, best: Float32Array | Float64Array) -> "Coverage":
        """Returns the coverage of N boxes from their best IoUs, `[N]`."""
        if not len(best):
            return cls(name, 0, 0.0, 0.0, 0.0)
        recall_40, recall_50 = (float((best >= iou).mean()) for iou in (0.4, 0.5))
        return cls(name, len(best), recall_40, recall_50, float(best.mean()))

    def exceeds(self, other: "Coverage") -> bool:
        """Whether it is better by more than a few thousandths, and no recall is lower."""
        if self.recall_40 < other.recall_40 or self.recall_50 < other.recall_50:
            return False
        return self.recall_50 + self.mean_iou > other.recall_50 + other.mean_iou + 0.005


class Matched(NamedTuple):
    """The anchors of N boxes."""

    best: Float32Array
    """`[N]`, the highest IoU of the box with any anchor."""
    anchor: NDArray[np.int64]
    """`[N]`, the anchor with this IoU; the first among equals."""
    chosen: NDArray[np.bool_]
    """`[N]`, the box is the best one of some anchor, at or above the threshold."""


def match_boxes(truth: TruthBoxes, anchors: Float32Array, threshold: float) -> Matched:
    """Compares every box with every anchor, image by image, as the argmax matcher does.

    Args:
        anchors: `[A, 4]`, normalised to the network input.
        threshold: IoU at which an anchor is matched.
    """
    count = len(truth.boxes)
    best, anchor = np.full(count, -1, np.float32), np.zeros(count, np.int64)
    chosen = np.zeros(count, np.bool_)
    for first, last in zip(truth.starts, truth.starts[1:], strict=False):
        if first == last:
            continue
        boxes, rows = truth.boxes[first:last], slice(first, last)
        step = max(1, _PAIRS // len(boxes))
        for start in range(0, len(anchors), step):
            overlaps = iou_matrix(boxes, anchors[start : start + step])
            favourite = overlaps.argmax(axis=1)
            highest = overlaps[np.arange(len(boxes)), favourite]
            better = highest > best[rows]
            best[rows] = np.where(better, highest, best[rows])
            anchor[rows] = np.where(better, favourite + start, anchor[rows])
            takes = overlaps.argmax(axis=0)
            taken = takes[overlaps.max(axis=0) >= threshold]
            chosen[first + taken] = True
    return Matched(best, anchor, chosen)


class Lattice(NamedTuple):
    """The anchors of one feature map: the same sizes at every point of a grid of centres."""

    rows: Float64Array
    """`[H]`, vertical centres, rising."""
    columns: Float64Array
    """`[W]`, horizontal centres, rising."""
    sizes: Float64Array
    """`[S, 2]`, heights and widths."""


def split_lattices(
    anchors: Float32Array, feature_shapes: Sequence[tuple[int, int]], per_location: Sequence[int]
) -> list[Lattice]:
    """Splits the anchors of a detector into feature maps.

    Args:
        anchors: `[A, 4]`, in the order of the head's channels.
        feature_shapes: height and width of every map.
        per_location: anchors at one location of each map.
    """
    lattices = []
    shapes = [(*shape, count, 4) for shape, count in zip(feature_shapes, per_location, strict=True)]
    ends = np.cumsum([math.prod(shape) // 4 for shape in shapes])
    for shape, part in zip(shapes, np.split(anchors, ends[:-1]), strict=True):
        block = part.reshape(shape).astype(np.float64)
        centers = (block[..., :2] + block[..., 2:]) / 2
        extents = (block[..., 2:] - block[..., :2])[0, 0]
        lattices.append(Lattice(centers[:, 0, 0, 0], centers[0, :, 0, 1], extents))
    return lattices


def best_overlaps(boxes: Float32Array, lattices: Sequence[Lattice]) -> Float64Array:
    """Returns the highest IoU of each box with any anchor, `[N]`.

    Among anchors of one size the one with the nearest centre overlaps most, because the
    intersection shrinks with the distance along either axis. A box, a row of `boxes` `[N, 4]`, is
    therefore compared with one anchor for each size of a map.
    """
    boxes = boxes.astype(np.float64)
    centers, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    best = np.zeros(len(boxes))
    for lattice in lattices:
        shared = np.ones((len(boxes), len(lattice.sizes)))
        for axis, places in enumerate((lattice.rows, lattice.columns)):
            distance = np.abs(centers[:, axis] - places[_nearest(centers[:, axis], places)])
            extents, side = lattice.sizes[None, :, axis], sides[:, axis, None]
            reach = (extents + side) / 2 - distance[:, None]
            # The intersection is at most the shorter of the two sides.
            shared *= np.clip(reach, 0, np.minimum(extents, side))
        union = sides.prod(axis=1)[:, None] + lattice.sizes.prod(axis=1)[None] - shared
        best = np.maximum(best, (shared / union).max(axis=1))
    return best


def _nearest(values: Float64Array, places: Float64Array) -> NDArray[np.int64]:
    if len(places) == 1:
        return np.zeros(len(values), np.int64)
    right = np.searchsorted(places, values).clip(1, len(places) - 1)
    return right - (values - places[right - 1] <= places[right] - values)


# At most so many boxes are used to compare suggestions; the best one is measured on all boxes.
_TRIED_ON = 4000
_CLUSTERS = 9
_ROUNDS = 100
# Quantiles of the boxes' sides that are tried as the smallest and the largest scale.
_LOW, _HIGH = (0.01, 0.03, 0.06, 0.1, 0.2, 0.35), (0.8, 0.9, 0.95, 0.98, 1.0)


@dataclass(frozen=True)
class Suggestion:
    """Other values of the anchors' own kind, and their coverage of the same boxes."""

    changes: Changes
    """Dotted field -> value."""
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


def cluster_shapes(sizes: Float64Array, count: int = _CLUSTERS) -> list[Shape]:
    """Groups boxes by k-means, with 1 - IoU of centred boxes as the distance (arXiv:1612.08242).

    The first centres are boxes at equal distances in the order of their areas, not random ones.

    Args:
        sizes: `[N, 2]`, heights and widths in pixels of the network input, N at least 1.
        count: groups; fewer if there are fewer different shapes.

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
        pairs = zip(members, centers, strict=True)
        centers = np.stack([np.median(g, axis=0) if len(g) else center for g, center in pairs])
    shares = np.bincount(groups, minlength=len(centers)) / len(sizes)
    rows = np.column_stack([centers, shares]).tolist()
    shapes = [Shape(*row) for row in rows if row[2]]
    return sorted(shapes, key=lambda shape: shape.height * shape.width)


def typical_ratios(shapes: Sequence[Shape], count: int) -> list[tuple[float, ...]]:
    """Returns choices of `count` aspect ratios, width over height, that represent all shapes.

    One has a ratio for each part of the boxes, the other spreads over all of them at equal
    distances. Ratios that agree to a hundredth are one.
    """
    logs = np.log([shape.width / shape.height for shape in shapes])
    order = np.argsort(logs)
    logs, weights = logs[order], np.array([shape.share for shape in shapes])[order]
    # The boxes are divided into equal parts; a shape is in the part with the middle of its share.
    middles = np.cumsum(weights) - weights / 2
    parts = np.minimum((middles * count).astype(int), count - 1)
    means = [np.average(logs[parts == p], weights=weights[parts == p]) for p in np.unique(parts)]
    return [
        tuple(dict.fromkeys(np.exp(choice).round(2).tolist()))
        for choice in (means, np.linspace(logs[0], logs[-1], count))
    ]


def candidates(
    anchors: Anchors, sizes: Float64Array, shapes: Sequence[Shape], image: tuple[int, int]
) -> Iterator[Anchors]:
    """Yields anchors of the same kind that fit the data; none for unknown kinds.

    They cost no more: a location has at most as many anchors as before.

    Args:
        sizes: `[N, 2]`, heights and widths of the boxes in pixels of the network input.
        shapes: `cluster_shapes` of `sizes`.
        image: height and width of the network input, in pixels.
    """
    sides = np.sqrt(sizes.prod(axis=1))
    described: Iterable[SsdAnchors | MultiscaleAnchors] = ()
    if isinstance(anchors, SsdAnchors):
        described = _ssd_candidates(anchors, sides, image)
    elif isinstance(anchors, MultiscaleAnchors):
        described = _multiscale_candidates(anchors, sides)
    for candidate in described:
        yield candidate
        for ratios in typical_ratios(shapes, len(candidate.aspect_ratios)):
            yield replace(candidate, aspect_ratios=ratios)


def _ssd_candidates(
    anchors: SsdAnchors, sides: Float64Array, image: tuple[int, int]
) -> Iterator[SsdAnchors]:
    # Scale 1 is the shorter side of the image, times the base anchor.
    base = min(image) * np.sqrt(anchors.base_anchor_height * anchors.base_anchor_width)
    yield anchors
    for low, high in product(np.quantile(sides, _LOW) / base, np.quantile(sides, _HIGH) / base):
        least, greatest = (max(0.01, round(float(scale), 2)) for scale in (low, high))
        if least < greatest and anchors.scales:
            scales = np.linspace(least, greatest, anchors.num_layers).round(3)
            yield replace(anchors, scales=tuple(scales.tolist()))
        elif least < greatest and anchors.num_layers > 1:
            yield replace(anchors, min_scale=least, max_scale=greatest)


def _multiscale_candidates(
    anchors: MultiscaleAnchors, sides: Float64Array
) -> Iterator[MultiscaleAnchors]:
    yield anchors
    for side in np.quantile(sides, _LOW):
        scale = max(0.1, round(float(side) / 2**anchors.min_level, 2))
        yield replace(anchors, anchor_scale=scale)


def suggest(
    anchors: Anchors,
    boxes: Float32Array,
    sides: Float64Array,
    shapes: Sequence[Shape],
    maps: tuple[tuple[int, int], ...],
    image: tuple[int, int],
    *,
    where: str = "model.anchors",
) -> tuple[Suggestion, Float64Array] | None:
    """Tries candidates on some of the boxes and measures the best of them on all.

    Args:
        boxes: `[N, 4]`, normalised to the network input.
        sides: `[N, 2]`, heights and widths of the boxes in pixels of the network input.
        shapes: `cluster_shapes` of `sides`.
        maps: height and width of every feature map.
        image: height and width of the network input, in pixels.
        where: the path of `anchors` in the experiment.

    Returns:
        The suggestion and, `[N]`, the best IoU of every box with it; None if nothing is better.
    """

    def overlaps(some: Anchors, with_boxes: Float32Array) -> Float64Array:
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
    changes = {f"{where}.{path}": after for path, _, after in differences(anchors, chosen)}
    best = overlaps(chosen, boxes)
    coverage = Coverage.of("suggested", best)
    return Suggestion(changes, anchors_per_location(chosen, len(maps)), coverage), best


def spread(rows: NDArray[Scalar], count: int) -> NDArray[Scalar]:
    """Returns at most `count` rows of an array, evenly spread."""
    return rows[spread_indices(len(rows), count)]


def _overlaps(sizes: Float64Array, centers: Float64Array) -> Float64Array:
    """Returns the IoU of boxes on one centre, `[N, K]`."""
    shared = np.minimum(sizes[:, None], centers[None]).prod(axis=-1)
    union = sizes.prod(axis=1)[:, None] + centers.prod(axis=1)[None] - shared
    return np.asarray(shared / union)
