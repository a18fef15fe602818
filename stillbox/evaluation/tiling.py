"""Detection in the tiles of a large image, as in SAHI (Akyon et al. 2022, arXiv:2202.06934).

Detections of overlapping windows are merged class by class. A box that ends at a border of its
window inside the image is cut: the window may show only a part of the object. A cut box is compared
with another box inside the intersection of their windows, where a part and the whole coincide.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError, nearest
from stillbox.evaluation.results import RawDetections
from stillbox.experiment import schema
from stillbox.records.tile_grid import TileWindow, check_grid, image_windows

# Boxes that end this share of their window's side before its border count as cut.
_BORDER = 1 / 64

Boxes = NDArray[np.float64]
"""`[N, 4]` or `[4]`, `[ymin, xmin, ymax, xmax]` in pixels of the image."""


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """N detections in V windows of one image."""

    boxes: Boxes
    scores: NDArray[np.float64]
    class_ids: NDArray[np.int64]
    windows: Boxes
    """The window that each was detected in."""
    views: NDArray[np.int64]
    """The number of that window."""
    cut: NDArray[np.bool_]
    """Whether the box ends at a border of its window, inside the image."""
    size: NDArray[np.float64]
    """`[2]`, height and width of the image."""

    @staticmethod
    def of(seen: Sequence[RawDetections], windows: Sequence[TileWindow]) -> "Pieces":
        """Returns the detections of each window, given in pixels of the window."""
        views = np.repeat(np.arange(len(seen)), [len(view.scores) for view in seen])
        frames = np.array(windows, np.float64)[views]
        boxes = np.concatenate([view.boxes for view in seen]) + np.tile(frames[:, :2], 2)
        boxes = _common(boxes, frames)
        size = np.array(windows, np.float64)[:, 2:].max(axis=0)
        return Pieces(
            boxes=boxes,
            scores=np.concatenate([view.scores for view in seen]),
            class_ids=np.concatenate([view.class_ids for view in seen]),
            windows=frames,
            views=views,
            cut=_is_cut(boxes, frames, size),
            size=size,
        )

    def __getitem__(self, keep: NDArray[np.int64]) -> "Pieces":
        return replace(self, **{name: getattr(self, name)[keep] for name in _COLUMNS})


_COLUMNS = ("boxes", "scores", "class_ids", "windows", "views", "cut")


def unite_cut(pieces: Pieces, threshold: float) -> Pieces:
    """Replaces the cut parts of one object, in different windows, by their common box.

    Parts belong together if they coincide in the intersection of their windows. The common box has
    the best score and the class of its parts. It is not cut if the windows together show all of it.
    """
    cut = np.flatnonzero(pieces.cut)
    groups = _groups(pieces[cut], threshold)
    boxes, scores, views = pieces.boxes.copy(), pieces.scores.copy(), pieces.views.copy()
    windows, still_cut = pieces.windows.copy(), pieces.cut.copy()
    kept = np.ones(len(boxes), np.bool_)
    for group in np.flatnonzero(np.bincount(groups) > 1):
        parts = cut[groups == group]
        first = parts[0]
        boxes[first], windows[first] = _hull(boxes[parts]), _hull(windows[parts])
        scores[first] = scores[parts].max()
        # The united box gets a new window, in which no other box was detected.
        views[first] = -1 - first
        still_cut[first] = _is_cut(boxes[first], windows[first], pieces.size)
        kept[parts[1:]] = False
    united = replace(
        pieces, boxes=boxes, scores=scores, views=views, windows=windows, cut=still_cut
    )
    return united[np.flatnonzero(kept)]


def fuse_clusters(pieces: Pieces, threshold: float, *, average: bool) -> Pieces:
    """Returns one detection for each cluster of boxes that overlap by more than the threshold.

    Whole boxes come before cut ones, better before worse; a box joins the cluster that it overlaps
    most, or begins one. The cluster's box is its first, or the average of its whole boxes weighted
    by their scores, as they join. Its score is the best of all: the mean of weighted boxes fusion,
    scaled by the number of models, is for models that all see the same image.

    A cut box that lies in the box of a better cluster by more than the threshold is dropped.
    """
    order = np.lexsort((-pieces.scores, pieces.cut))
    pieces = pieces[order]
    boxes, scores = pieces.boxes.copy(), pieces.scores.copy()
    weights = scores.copy()
    firsts, count = np.zeros(len(boxes), np.int64), 0
    for piece in range(len(boxes)):
        others = firsts[:count]
        others = others[
            (pieces.class_ids[others] == pieces.class_ids[piece])
            & (pieces.views[others] != pieces.views[piece])
        ]
        others = _touching(boxes, piece, others)
        overlaps = _overlaps(boxes, pieces, piece, others)
        if overlaps.max(initial=0) > threshold:
            first = others[overlaps.argmax()]
            scores[first] = max(scores[first], scores[piece])
            if average and not (pieces.cut[first] or pieces.cut[piece]):
                weight = weights[first] + weights[piece]
                boxes[first] += (boxes[piece] - boxes[first]) * weights[piece] / max(weight, 1e-12)
                weights[first] = weight
        elif not (pieces.cut[piece] and _is_inside(boxes, scores, piece, others, threshold)):
            firsts[count] = piece
            count += 1
    return replace(pieces, boxes=boxes, scores=scores)[firsts[:count]]


def _groups(parts: Pieces, threshold: float) -> NDArray[np.int64]:
    """Returns the number `[N]` of each part's object."""
    groups = np.arange(len(parts.boxes))
    for part in range(len(groups)):
        later = np.arange(part + 1, len(groups))
        later = later[
            (parts.class_ids[later] == parts.class_ids[part])
            & (parts.views[later] != parts.views[part])
        ]
        later = _touching(parts.boxes, part, later)
        same = later[_overlaps(parts.boxes, parts, part, later) > threshold]
        groups[np.isin(groups, groups[same])] = groups[part]
    return groups


def _touching(boxes: Boxes, piece: int, others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the others with a box that has a part in common: of hundreds, a few."""
    (ymin, xmin, ymax, xmax), sides = boxes[piece], boxes[others].T
    return others[(sides[0] < ymax) & (sides[1] < xmax) & (sides[2] > ymin) & (sides[3] > xmin)]


def _overlaps(
    boxes: Boxes, pieces: Pieces, piece: int, others: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Returns the IoU of a box with others, inside the intersection of the windows if one is
    cut."""
    common = _common(pieces.windows[others], pieces.windows[piece])
    seen_one, seen_others = _common(boxes[piece], common), _common(boxes[others], common)
    either = pieces.cut[others] | pieces.cut[piece]
    seen, plain = box_iou(seen_one, seen_others), box_iou(boxes[piece], boxes[others])
    return np.where(either, seen, plain)


def _is_inside(
    boxes: Boxes,
    scores: NDArray[np.float64],
    piece: int,
    others: NDArray[np.int64],
    threshold: float,
) -> bool:
    """Returns whether a share of the box above the threshold lies in a box of no lower score."""
    better = boxes[others[scores[others] >= scores[piece]]]
    share = _area(_common(boxes[piece], better)) / max(float(_area(boxes[piece])), 1e-12)
    return bool(share.max(initial=0) > threshold)


def _is_cut(boxes: Boxes, windows: Boxes, size: NDArray[np.float64]) -> NDArray[np.bool_]:
    near = np.tile((windows[..., 2:] - windows[..., :2]) * _BORDER, 2)
    inner = np.concatenate([windows[..., :2] > 0, windows[..., 2:] < size], axis=-1)
    return np.asarray((inner & (np.abs(boxes - windows) <= near)).any(axis=-1))


def _hull(boxes: Boxes) -> Boxes:
    return np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])


def _common(first: Boxes, second: Boxes) -> Boxes:
    """Returns the intersection; without one its sides are in the wrong order."""
    low, high = np.maximum(first, second)[..., :2], np.minimum(first, second)[..., 2:]
    return np.concatenate([low, high], axis=-1)


def _area(boxes: Boxes) -> NDArray[np.float64]:
    sides = np.maximum(boxes[..., 2:] - boxes[..., :2], 0)
    area: NDArray[np.float64] = sides[..., 0] * sides[..., 1]
    return area


def box_iou(first: Boxes, second: Boxes) -> NDArray[np.float64]:
    """Returns the IoU `[...]` of boxes `[..., 4]`; shapes are broadcast."""
    both = _area(_common(first, second))
    iou: NDArray[np.float64] = both / np.maximum(_area(first) + _area(second) - both, 1e-12)
    return iou


MERGES = ("nms", "wbf")


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How images are cut into overlapping tiles, and the detections of the tiles merged.

    Each tile is resized to the network input, so that small objects keep their pixels. An image
    that fits into one tile is not cut.

    Raises:
        UserError: a value is impossible.
    """

    tile: int
    """Side of a tile in pixels of the image."""
    overlap: float = 0.2
    """Least share of a tile's side that its neighbour covers too."""
    merge: Literal["nms", "wbf"] = "nms"
    """`nms`: of the boxes of one object, the best is kept; `wbf`: they are averaged with their
    scores as weights (weighted boxes fusion, Solovyev et al. 2021, arXiv:1910.13302)."""
    full_image: bool = True
    """Detect in the whole image too, for objects that fit into no tile."""
    iou_threshold: float = 0.5
    """Boxes of one class from different tiles with a greater overlap are one object."""

    def __post_init__(self) -> None:
        check_grid(self.tile, self.overlap)
        if self.merge not in MERGES:
            fix = nearest(self.merge, MERGES)
            raise UserError(f"there is no merge {self.merge!r}", where="merge", fix=fix)
        if not 0 < self.iou_threshold < 1:
            problem = f"{self.iou_threshold:g} is no overlap"
            raise UserError(problem, where="iou_threshold", fix="0.5 is usual")

    @classmethod
    def of(cls, tiles: schema.Tiles | None) -> "Tiling | None":
        """Returns the tiling of an experiment; None if its images are whole."""
        if tiles is None:
            return None
        return cls(
            tile=tiles.side,
            overlap=tiles.overlap,
            merge=tiles.merge,
            full_image=tiles.whole_image,
        )

    def windows(self, height: int, width: int) -> list[TileWindow]:
        """Returns the windows of an image that are detected in, the whole image last."""
        whole = self.full_image
        return list(image_windows(height, width, self.tile, self.overlap, whole_image=whole))

    def merged(
        self, detections: Sequence[RawDetections], windows: Sequence[TileWindow]
    ) -> RawDetections:
        """Merges the detections of each window, in pixels of the window, to the image's."""
        finite = all(view.finite for view in detections)
        if len(detections) == 1:
            return detections[0]
        pieces = unite_cut(Pieces.of(detections, windows), self.iou_threshold)
        merged = fuse_clusters(pieces, self.iou_threshold, average=self.merge == "wbf")
        order = np.argsort(-merged.scores, kind="stable")
        return RawDetections(merged.boxes, merged.scores, merged.class_ids, finite).pick(order)
