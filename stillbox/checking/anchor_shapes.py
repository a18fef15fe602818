"""Which shapes boxes have, and which values of the anchors' own kind would fit them better."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillbox.experiment.schema import Anchors, MultiscaleAnchors, SsdAnchors

Doubles = NDArray[np.float64]

_CLUSTERS = 9
_ROUNDS = 100
# Where the least and the greatest scale may lie among those of the boxes.
_LOW, _HIGH = (0.01, 0.03, 0.06, 0.1, 0.2, 0.35), (0.8, 0.9, 0.95, 0.98, 1.0)


class Shape(NamedTuple):
    """Boxes that look alike."""

    height: float
    """In pixels of the network input."""
    width: float
    """In pixels of the network input."""
    share: float
    """Part of all boxes, 0 to 1."""


def cluster_shapes(sizes: Doubles, count: int = _CLUSTERS) -> list[Shape]:
    """Groups boxes by k-means, with 1 - IoU of centred boxes as the distance (arXiv:1612.08242).

    The start is no matter of chance: the boxes at equal distances in the order of their areas.

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
        # A group that lost all its boxes keeps its place.
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
    """Returns choices of so many aspect ratios, width over height, that stand for all shapes.

    One has a ratio for each part of the boxes, the other spreads over all of them at equal
    distances. Ratios that agree to a hundredth are one.
    """
    logs = np.log([shape.width / shape.height for shape in shapes])
    order = np.argsort(logs)
    logs, weights = logs[order], np.array([shape.share for shape in shapes])[order]
    # The middle of a shape's share says which of so many equal parts of the boxes it is in.
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
    """Yields descriptions of the same kind that the data suggests; none for other kinds.

    They have as many anchors at a location as before, or fewer, so that they cost no more.

    Args:
        anchors: the description now.
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


def _overlaps(sizes: Doubles, centers: Doubles) -> Doubles:
    """Returns the IoU of boxes on one centre, `[N, K]`."""
    shared = np.minimum(sizes[:, None], centers[None]).prod(axis=-1)
    union = sizes.prod(axis=1)[:, None] + centers.prod(axis=1)[None] - shared
    overlaps: Doubles = shared / union
    return overlaps
