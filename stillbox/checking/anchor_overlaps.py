"""Overlaps of anchors and boxes: by all pairs, and faster where only the best anchor counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillbox.checking.truth_boxes import Floats, TruthBoxes
from stillbox.evaluation.results import iou_matrix

# Pairs in memory at once: a few arrays of 16 MB.
_PAIRS = 2**22


@dataclass(frozen=True)
class Coverage:
    """How well some boxes are covered by anchors."""

    name: str
    """Of the group of boxes."""
    boxes: int
    recall_40: float
    """Part of the boxes that some anchor overlaps with an IoU of at least .4."""
    recall_50: float
    """The same at .5."""
    mean_iou: float
    """Mean over the boxes of the IoU with their best anchor."""

    @classmethod
    def of(cls, name: str, best: Floats | NDArray[np.float64]) -> "Coverage":
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

    best: Floats
    """`[N]`, the highest IoU of the box with any anchor."""
    anchor: NDArray[np.int64]
    """`[N]`, the anchor with this IoU; the first among equals."""
    chosen: NDArray[np.bool_]
    """`[N]`, the box is the best one of some anchor, at or above the threshold."""


def match_boxes(truth: TruthBoxes, anchors: Floats, threshold: float) -> Matched:
    """Compares every box with every anchor, image by image, as the argmax matcher does.

    Args:
        truth: the boxes.
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

    rows: NDArray[np.float64]
    """`[H]`, vertical centres, rising."""
    columns: NDArray[np.float64]
    """`[W]`, horizontal centres, rising."""
    sizes: NDArray[np.float64]
    """`[S, 2]`, heights and widths."""


def split_lattices(
    anchors: Floats, feature_shapes: Sequence[tuple[int, int]], per_location: Sequence[int]
) -> list[Lattice]:
    """Splits the anchors of a detector into feature maps.

    Args:
        anchors: `[A, 4]`, in the order of the head's channels.
        feature_shapes: height and width of every map.
        per_location: anchors at one location of each map.
    """
    lattices, start = [], 0
    for (height, width), sizes in zip(feature_shapes, per_location, strict=True):
        stop = start + height * width * sizes
        block = anchors[start:stop].reshape(height, width, sizes, 4).astype(np.float64)
        centers = (block[..., :2] + block[..., 2:]) / 2
        extents = (block[..., 2:] - block[..., :2])[0, 0]
        lattices.append(Lattice(centers[:, 0, 0, 0], centers[0, :, 0, 1], extents))
        start = stop
    return lattices


def best_overlaps(boxes: Floats, lattices: Sequence[Lattice]) -> NDArray[np.float64]:
    """Returns the highest IoU of each box with any anchor, `[N]`.

    Of anchors of one size the one with the nearest centre overlaps most, because the intersection
    shrinks with the distance along either axis. So a box is compared with one anchor for each size
    of a map.

    Args:
        boxes: `[N, 4]`.
        lattices: of all feature maps.
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


def _nearest(values: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.int64]:
    if len(places) == 1:
        return np.zeros(len(values), np.int64)
    right = np.searchsorted(places, values).clip(1, len(places) - 1)
    return right - (values - places[right - 1] <= places[right] - values)
