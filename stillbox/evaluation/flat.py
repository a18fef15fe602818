"""Ground truth and detections of a whole set in flat arrays, with the pairs that overlap."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stillbox.evaluation.checks import number_images
from stillbox.evaluation.results import ImageResult, ImageTruth, box_areas

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

BACKGROUND_IOU = 0.1
"""A detection that overlaps no object more than this lies on the background."""

# Pairs whose overlap is computed at a time: 64 MB for each array of boxes.
_PAIRS_AT_ONCE = 2_000_000


@dataclass(frozen=True, kw_only=True)
class FlatSet:
    """T objects, D detections, best first, and their P pairs of one image that overlap."""

    images: int
    truth_image: Ints
    """`[T]`, place of the image in the set."""
    truth_boxes: Floats
    """`[T, 4]`, pixels."""
    truth_class: Ints
    """`[T]`, label map ids."""
    truth_ignored: Bools
    """`[T]`, objects that need not be found, and whose detections do not count."""
    truth_area: Floats
    """`[T]`, square pixels; of the segment if there is one."""
    image: Ints
    """`[D]`, place of the image in the set."""
    boxes: Floats
    """`[D, 4]`, pixels."""
    class_ids: Ints
    """`[D]`, label map ids."""
    scores: Floats
    """`[D]`, falling; equal scores are in the order of the images' ids."""
    pair_detection: Ints
    """`[P]`, ascending."""
    pair_truth: Ints
    """`[P]`, by falling overlap within a detection."""
    pair_iou: Floats
    """`[P]`, IoU of at least `BACKGROUND_IOU`; with a crowd, the share of the detection in it."""

    @property
    def pair_same_class(self) -> Bools:
        """`[P]`, detection and object have the same class."""
        same: Bools = self.class_ids[self.pair_detection] == self.truth_class[self.pair_truth]
        return same

    def above(self, score: float) -> "FlatSet":
        """Returns the set with the detections of at least this score."""
        count = int(np.searchsorted(-self.scores, -score, side="right"))
        pairs = int(np.searchsorted(self.pair_detection, count))
        return replace(
            self,
            image=self.image[:count],
            boxes=self.boxes[:count],
            class_ids=self.class_ids[:count],
            scores=self.scores[:count],
            pair_detection=self.pair_detection[:pairs],
            pair_truth=self.pair_truth[:pairs],
            pair_iou=self.pair_iou[:pairs],
        )


def flatten(
    truths: Sequence[ImageTruth],
    results: Sequence[ImageResult],
    class_names: Mapping[int, str],
    *,
    difficult: bool = False,
) -> FlatSet:
    """Returns the flat arrays; detections of classes that `class_names` lacks are left out.

    `difficult`: difficult objects are ignored in place of crowds, as in Pascal VOC's metrics.

    Raises:
        UserError: see `number_images`.
    """
    numbers = number_images(truths, results, class_names)
    places = {truth.image_id: place for place, truth in enumerate(truths)}
    ordered = sorted(results, key=lambda result: numbers[result.image_id])
    image, boxes = _join([(places[r.image_id], r.boxes) for r in ordered])
    scores = np.concatenate([np.empty(0), *(r.scores for r in ordered)])
    class_ids = np.concatenate([np.empty(0, np.int64), *(r.class_ids for r in ordered)])
    chosen = np.argsort(-scores, kind="stable")
    chosen = chosen[np.isin(class_ids[chosen], list(class_names))]
    truth_image, truth_boxes = _join([(place, t.boxes) for place, t in enumerate(truths)])
    none = np.empty(0, np.bool_)
    crowd = np.concatenate([none, *(t.is_crowd for t in truths)])
    hard = np.concatenate([none, *(t.is_difficult for t in truths)])
    flat = FlatSet(
        images=len(truths),
        truth_image=truth_image,
        truth_boxes=truth_boxes,
        truth_class=np.concatenate([np.empty(0, np.int64), *(t.class_ids for t in truths)]),
        truth_ignored=hard if difficult else crowd,
        truth_area=np.concatenate([np.empty(0), *(t.areas() for t in truths)]),
        image=image[chosen],
        boxes=boxes[chosen],
        class_ids=class_ids[chosen],
        scores=scores[chosen],
        pair_detection=np.empty(0, np.int64),
        pair_truth=np.empty(0, np.int64),
        pair_iou=np.empty(0),
    )
    detection, truth, iou = _overlapping(flat, crowd & (not difficult))
    return replace(flat, pair_detection=detection, pair_truth=truth, pair_iou=iou)


def first_of_each(owner: Ints) -> Bools:
    """Returns `[N]`, whether an entry is the first of its owner; equal owners are neighbours."""
    return np.diff(owner, prepend=-1) != 0


def match(detection: Ints, truth: Ints) -> Ints:
    """Matches detections, the best first, each to the free object that it overlaps most.

    Args:
        detection: `[P]`, ascending.
        truth: `[P]`, by falling overlap within a detection.

    Returns:
        The places of the matched pairs.
    """
    # Each detection asks for its best object, each object takes the best detection that asks, and
    # those refused ask for their next one. All objects prefer higher scores, so that this ends as
    # if one detection after the other had chosen (Gale and Shapley 1962).
    alive = np.arange(len(detection))
    while True:
        asking = alive[first_of_each(detection[alive])]
        asking = asking[np.argsort(truth[asking], kind="stable")]
        accepted = first_of_each(truth[asking])
        if accepted.all():
            return asking
        refused = np.zeros(len(detection), np.bool_)
        refused[asking[~accepted]] = True
        alive = alive[~refused[alive]]


def _join(parts: Sequence[tuple[int, Floats]]) -> tuple[Ints, Floats]:
    """Returns the number of the part of every box, `[N]`, and the boxes, `[N, 4]`."""
    counts = [len(boxes) for _, boxes in parts]
    owners = np.repeat(np.array([number for number, _ in parts], np.int64), counts)
    return owners, np.concatenate([np.empty((0, 4)), *(boxes for _, boxes in parts)])


def _overlapping(flat: FlatSet, crowd: Bools) -> tuple[Ints, Ints, Floats]:
    parts = [_overlaps(flat, crowd, *pairs) for pairs in _pairs(flat)]
    detection, truth, iou = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((truth, -iou, detection))
    return detection[order], truth[order], iou[order]


def _pairs(flat: FlatSet) -> Iterator[tuple[Ints, Ints]]:
    """Yields the pairs of detections and objects that share an image, a part at a time."""
    yield np.empty(0, np.int64), np.empty(0, np.int64)
    starts = np.searchsorted(flat.truth_image, np.arange(flat.images + 1))
    counts = np.diff(starts)[flat.image]
    part = np.cumsum(counts) // _PAIRS_AT_ONCE
    for number in np.unique(part):
        chosen = np.flatnonzero((part == number) & (counts > 0))
        many = counts[chosen]
        # 0, 1, ... within each detection.
        place = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        yield np.repeat(chosen, many), np.repeat(starts[flat.image[chosen]], many) + place


def _overlaps(
    flat: FlatSet, crowd: Bools, detection: Ints, truth: Ints
) -> tuple[Ints, Ints, Floats]:
    boxes, others = flat.boxes[detection], flat.truth_boxes[truth]
    size = np.minimum(boxes[:, 2:], others[:, 2:]) - np.maximum(boxes[:, :2], others[:, :2])
    shared = np.maximum(size, 0).prod(axis=1)
    own = box_areas(boxes)
    whole = np.where(crowd[truth], own, own + box_areas(others) - shared)
    iou = np.divide(shared, whole, out=np.zeros(len(shared)), where=shared > 0)
    keep = iou >= BACKGROUND_IOU
    return detection[keep], truth[keep], iou[keep]
