"""Matches the detections of a whole set with its ground truth, in flat arrays.

From the matches: precision, recall and F1 against the score from which detections count, and the
confusion matrix.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stillbox.evaluation.results import (
    BoolArray,
    FloatArray,
    ImageResult,
    ImageTruth,
    IntArray,
    box_areas,
    number_images,
)

BACKGROUND_IOU = 0.1
"""A detection that overlaps no object more than this is on the background."""

# Overlaps that are computed at a time: 64 MB for each array of boxes.
_PAIRS_AT_ONCE = 2_000_000


@dataclass(frozen=True, kw_only=True)
class FlatSet:
    """T objects, D detections, best first, and their P pairs of one image that overlap."""

    images: int
    truth_image: IntArray
    """`[T]`, place of the image in the set."""
    truth_boxes: FloatArray
    """`[T, 4]`, pixels."""
    truth_class: IntArray
    """`[T]`, label map ids."""
    truth_ignored: BoolArray
    """`[T]`, objects that need not be found; their detections do not count."""
    truth_area: FloatArray
    """`[T]`, square pixels; of the segment if there is one."""
    image: IntArray
    """`[D]`, place of the image in the set."""
    boxes: FloatArray
    """`[D, 4]`, pixels."""
    class_ids: IntArray
    """`[D]`, label map ids."""
    scores: FloatArray
    """`[D]`, falling; equal scores are in the order of the images' ids."""
    pair_detection: IntArray
    """`[P]`, ascending."""
    pair_truth: IntArray
    """`[P]`, by falling overlap within a detection."""
    pair_iou: FloatArray
    """`[P]`, IoU of at least `BACKGROUND_IOU`; with a crowd, the share of the detection in it."""

    @property
    def pair_same_class(self) -> BoolArray:
        """`[P]`, detection and object have the same class."""
        same: BoolArray = self.class_ids[self.pair_detection] == self.truth_class[self.pair_truth]
        return same

    def above(self, score: float) -> "FlatSet":
        """Returns the set with the detections of at least this score."""
        count = int(np.searchsorted(-self.scores, -score, side="right"))
        pairs = int(np.searchsorted(self.pair_detection, count))
        ends = dict.fromkeys(("image", "boxes", "class_ids", "scores"), count)
        ends |= dict.fromkeys(("pair_detection", "pair_truth", "pair_iou"), pairs)
        return replace(self, **{name: getattr(self, name)[:end] for name, end in ends.items()})


def flatten(
    truths: Sequence[ImageTruth],
    results: Sequence[ImageResult],
    class_names: Mapping[int, str],
    *,
    crowds: bool = True,
    difficult: bool = False,
) -> FlatSet:
    """Returns the flat arrays; detections of classes that `class_names` lacks are left out.

    Args:
        truths: the ground truth.
        results: the detections.
        class_names: by label map id.
        crowds: ignore crowds, as COCO's and Open Images' metrics do.
        difficult: ignore difficult objects, as Pascal VOC's and Open Images' metrics do.

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
        truth_ignored=crowd & crowds | hard & difficult,
        truth_area=np.concatenate([np.empty(0), *(t.areas() for t in truths)]),
        image=image[chosen],
        boxes=boxes[chosen],
        class_ids=class_ids[chosen],
        scores=scores[chosen],
        pair_detection=np.empty(0, np.int64),
        pair_truth=np.empty(0, np.int64),
        pair_iou=np.empty(0),
    )
    detection, truth, iou = _overlapping(flat, crowd & crowds)
    return replace(flat, pair_detection=detection, pair_truth=truth, pair_iou=iou)


def first_of_each(owner: IntArray) -> BoolArray:
    """Returns `[N]`, whether an entry is the first of its owner; equal owners are neighbours."""
    return np.diff(owner, prepend=-1) != 0


def match(detection: IntArray, truth: IntArray) -> IntArray:
    """Matches detections, the best first, each to the free object that it overlaps most.

    Pairs are given as `detection` `[P]`, ascending, and `truth` `[P]`, by falling overlap within a
    detection. Returns the places of the matched pairs.
    """
    # Each detection asks for its best object, each object takes the best detection that asks, and
    # refused detections ask for their next one. All objects prefer higher scores. The result is
    # therefore the same as if one detection after the other had chosen (Gale and Shapley 1962).
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


def _join(parts: Sequence[tuple[int, FloatArray]]) -> tuple[IntArray, FloatArray]:
    """Returns the number of the part of every box, `[N]`, and the boxes, `[N, 4]`."""
    counts = [len(boxes) for _, boxes in parts]
    owners = np.repeat(np.array([number for number, _ in parts], np.int64), counts)
    return owners, np.concatenate([np.empty((0, 4)), *(boxes for _, boxes in parts)])


def _overlapping(flat: FlatSet, crowd: BoolArray) -> tuple[IntArray, IntArray, FloatArray]:
    parts = [_overlaps(flat, crowd, *pairs) for pairs in _pairs(flat)]
    detection, truth, iou = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((truth, -iou, detection))
    return detection[order], truth[order], iou[order]


def _pairs(flat: FlatSet) -> Iterator[tuple[IntArray, IntArray]]:
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
    flat: FlatSet, crowd: BoolArray, detection: IntArray, truth: IntArray
) -> tuple[IntArray, IntArray, FloatArray]:
    boxes, others = flat.boxes[detection], flat.truth_boxes[truth]
    size = np.minimum(boxes[:, 2:], others[:, 2:]) - np.maximum(boxes[:, :2], others[:, :2])
    shared = np.maximum(size, 0).prod(axis=1)
    areas = box_areas(boxes)
    whole = np.where(crowd[truth], areas, areas + box_areas(others) - shared)
    iou = np.divide(shared, whole, out=np.zeros(len(shared)), where=shared > 0)
    keep = iou >= BACKGROUND_IOU
    return detection[keep], truth[keep], iou[keep]


IOU = 0.5
"""Least IoU of a correct detection in all figures that have a threshold of the score."""


@dataclass(frozen=True, kw_only=True)
class Matched:
    """Which detections are correct, at `IOU`."""

    truth: IntArray
    """`[D]`, the object of the detection; -1: none."""
    ignored: BoolArray
    """`[D]`, unmatched detections on objects that are ignored: they do not count."""

    @property
    def correct(self) -> BoolArray:
        """`[D]`."""
        return self.truth >= 0


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """Precision, recall and F1 of one class, or of all together."""

    truths: int
    threshold: float | None
    """The score with the highest F1; `None`: no detection is correct."""
    detections: int
    """Detections with at least this score, without ignored ones."""
    correct: int
    levels: FloatArray
    """`[101]`, ascending scores."""
    precision: FloatArray
    """`[101]`, of the detections with at least the score of the level; NaN without detections."""
    recall: FloatArray
    """`[101]`; NaN without objects."""
    f1: FloatArray
    """`[101]`; NaN without either."""

    @property
    def occurs(self) -> bool:
        """There are objects or detections."""
        return bool(np.isfinite(self.f1).any())

    @property
    def at_best(self) -> dict[str, float | None]:
        """Precision, recall and F1 at the threshold."""
        return {
            "precision": self.correct / self.detections if self.detections else None,
            "recall": self.correct / self.truths if self.truths else None,
            "F1": 2 * self.correct / (self.detections + self.truths) if self.truths else None,
        }


def match_classes(flat: FlatSet) -> Matched:
    """Matches detections with objects of their class, as COCO does at IoU .50."""
    near = flat.pair_same_class & (flat.pair_iou >= IOU)
    ignored = flat.truth_ignored[flat.pair_truth]
    places = np.flatnonzero(near & ~ignored)
    places = places[match(flat.pair_detection[places], flat.pair_truth[places])]
    truth = np.full(len(flat.scores), -1, np.int64)
    truth[flat.pair_detection[places]] = flat.pair_truth[places]
    passed = np.zeros(len(truth), np.bool_)
    passed[flat.pair_detection[near & ignored]] = True
    return Matched(truth=truth, ignored=passed & (truth < 0))


def confidence(flat: FlatSet, matched: Matched) -> Confidence:
    """Returns the figures of all classes together."""
    counts = ~matched.ignored
    return _confidence(
        flat.scores[counts], matched.correct[counts], int((~flat.truth_ignored).sum())
    )


def class_confidences(
    flat: FlatSet, matched: Matched, class_ids: Iterable[int]
) -> dict[int, Confidence]:
    """Returns the figures of each class."""
    truths = Counter(flat.truth_class[~flat.truth_ignored].tolist())
    order = np.flatnonzero(~matched.ignored)
    order = order[np.argsort(flat.class_ids[order], kind="stable")]
    scores, correct, ids = flat.scores[order], matched.correct[order], flat.class_ids[order]
    confidences = {}
    for class_id in class_ids:
        of_class = slice(
            np.searchsorted(ids, class_id), np.searchsorted(ids, class_id, side="right")
        )
        confidences[class_id] = _confidence(scores[of_class], correct[of_class], truths[class_id])
    return confidences


def _confidence(scores: FloatArray, matches: BoolArray, truths: int) -> Confidence:
    """Returns the figures of detections, `[D]`, best first, that match one of `truths` or not."""
    right = np.concatenate([[0], np.cumsum(matches)])
    low, high = scores.min(initial=0.0), scores.max(initial=1.0)
    levels = np.linspace(low, high, 101)
    detections = np.searchsorted(-scores, -levels, side="right")
    correct = right[detections]
    best = _best(scores, right, truths)
    return Confidence(
        truths=truths,
        threshold=float(scores[best - 1]) if best else None,
        detections=best,
        correct=int(right[best]),
        levels=levels,
        precision=_ratio(correct, detections),
        recall=_ratio(correct, np.full(101, truths)),
        f1=_ratio(2 * correct, detections + truths),
    )


def _best(scores: FloatArray, right: IntArray, truths: int) -> int:
    """Returns how many of the best detections give the highest F1; the fewest of several.

    `scores` `[D]` fall; `right` `[D + 1]` counts the correct ones among the first 0, 1, ... D.
    """
    # Detections of one score are all above a threshold or all below it.
    ends = 1 + np.flatnonzero(np.diff(scores, append=-np.inf))
    if not right[-1]:
        return 0
    return int(ends[np.argmax(right[ends] / (ends + truths))])


def _ratio(part: IntArray, whole: IntArray) -> FloatArray:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """The confusions between classes at one threshold of the score."""

    class_ids: tuple[int, ...]
    """C label map ids with objects or detections, ascending."""
    cells: IntArray
    """`[N, 3]`, row, column and count, ascending. Rows are classes of objects, columns are classes
    of detections. In row C are detections without an object, in column C objects without a
    detection. Most pairs of classes are never confused: N is the number of counts above 0."""

    @property
    def counts(self) -> IntArray:
        """The whole matrix, `[C + 1, C + 1]`."""
        counts = np.zeros((len(self.class_ids) + 1,) * 2, np.int64)
        counts[self.cells[:, 0], self.cells[:, 1]] = self.cells[:, 2]
        return counts

    @property
    def objects(self) -> IntArray:
        """`[C]`, objects of each class."""
        sizes = len(self.class_ids) + 1
        return np.bincount(self.cells[:, 0], self.cells[:, 2], sizes)[:-1].astype(np.int64)

    @property
    def between_classes(self) -> IntArray:
        """The cells of objects that are found as another class."""
        row, column, _ = self.cells.T
        return self.cells[(row != column) & (np.maximum(row, column) < len(self.class_ids))]


def confusion(flat: FlatSet, matched: Matched) -> Confusion:
    """Counts classes against classes; the caller chooses the detections, as by `FlatSet.above`.

    Objects are matched with detections of their class first, so that the diagonal has the correct
    detections; what is left is matched across classes.
    """
    taken = np.zeros(len(flat.truth_class), np.bool_)
    taken[matched.truth[matched.correct]] = True
    free = ~matched.correct & ~matched.ignored
    near = (flat.pair_iou >= IOU) & free[flat.pair_detection]
    near &= ~taken[flat.pair_truth] & ~flat.truth_ignored[flat.pair_truth]
    places = np.flatnonzero(near)
    places = places[match(flat.pair_detection[places], flat.pair_truth[places])]
    truth = matched.truth.copy()
    truth[flat.pair_detection[places]] = flat.pair_truth[places]
    valid, left = ~matched.ignored, ~flat.truth_ignored
    ids = np.union1d(flat.truth_class[left], flat.class_ids[valid])
    left[truth[truth >= 0]] = False
    # Detections without an object, -1, have a place of their own.
    rows = np.append(np.searchsorted(ids, flat.truth_class), len(ids))
    columns = np.searchsorted(ids, flat.class_ids)
    detected = np.stack([rows[truth[valid]], columns[valid]], axis=1)
    missed = np.stack([rows[:-1][left], np.full(left.sum(), len(ids))], axis=1)
    pairs, numbers = np.unique(np.concatenate([detected, missed]), axis=0, return_counts=True)
    return Confusion(class_ids=tuple(ids.tolist()), cells=np.column_stack([pairs, numbers]))
