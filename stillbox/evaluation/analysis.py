"""The content of a report beyond the metrics: thresholds, confusions, mistakes, sizes.

There are six kinds of mistakes, each with its cost in AP. Definitions: Bolya et al. 2020, "TIDE:
A General Toolbox for Identifying Object Detection Errors".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from stillbox.evaluation.matching import (
    BACKGROUND_IOU,
    IOU,
    Confidence,
    Confusion,
    FlatSet,
    Matched,
    class_confidences,
    confidence,
    confusion,
    first_of_each,
    flatten,
    match_classes,
)
from stillbox.evaluation.results import (
    BoolArray,
    FloatArray,
    ImageResult,
    ImageTruth,
    IntArray,
    class_keys,
)
from stillbox.evaluation.voc import precision_recall

Kind = Literal["confused", "misplaced", "both", "double", "background", "missed"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order of the paper: Cls, Loc, Both, Dupe, Bkg, Miss."""
CONFUSED, MISPLACED, BOTH, DOUBLE, BACKGROUND, MISSED = range(6)

MEANINGS: dict[Kind, str] = {
    "confused": "right place, wrong class (TIDE: Cls)",
    "misplaced": "right class, badly placed: IoU .10 to .50 (TIDE: Loc)",
    "both": "wrong class and badly placed (TIDE: Both)",
    "double": "a second detection of an object that is found already (TIDE: Dupe)",
    "background": "no object there: IoU below .10 (TIDE: Bkg)",
    "missed": "an object that no detection comes near (TIDE: Miss)",
}


@dataclass(frozen=True, kw_only=True)
class Mistakes:
    """The mistakes of a set, in the terms of its `FlatSet`."""

    kind: IntArray
    """`[D]`, index into `KINDS`; -1: correct, or ignored."""
    truth: IntArray
    """`[D]`, the object that the detection of a mistake belongs to; -1: none."""
    missed: IntArray
    """`[M]`, missed objects."""
    fixes: BoolArray
    """`[D]`, whether the corrected detection would match its object."""

    def counts(self) -> dict[Kind, int]:
        """Returns the number of mistakes of each kind."""
        many = np.bincount(self.kind[self.kind >= 0], minlength=len(KINDS))
        many[MISSED] = len(self.missed)
        return dict(zip(KINDS, many.tolist(), strict=True))


def find_mistakes(flat: FlatSet, matched: Matched) -> Mistakes:
    """Returns the kind of every wrong detection, and the missed objects."""
    same, iou = flat.pair_same_class, flat.pair_iou
    real = ~flat.truth_ignored[flat.pair_truth]
    # One more than there are objects, for detections without one, -1.
    taken = np.zeros(len(flat.truth_class) + 1, np.bool_)
    taken[matched.truth[matched.correct]] = True
    same_class, same_iou = _best(flat, real & same)
    other, other_iou = _best(flat, real & ~same)
    used, used_iou = _best(flat, real & same & taken[flat.pair_truth])
    nearest = _best(flat, real & (iou > BACKGROUND_IOU))[1]
    rules = [
        (MISPLACED, (same_iou >= BACKGROUND_IOU) & (same_iou <= IOU), same_class),
        (CONFUSED, other_iou >= IOU, other),
        (DOUBLE, used_iou >= IOU, used),
        (BACKGROUND, nearest <= BACKGROUND_IOU, np.full_like(same_class, -1)),
    ]
    wrong = ~matched.correct & ~matched.ignored
    kind = np.select([fits for _, fits, _ in rules], [kind for kind, *_ in rules], BOTH)
    truth = np.select([fits for _, fits, _ in rules], [truth for *_, truth in rules], -1)
    kind, truth = np.where(wrong, kind, -1), np.where(wrong, truth, -1)
    near = ((kind == MISPLACED) | (kind == CONFUSED)) & ~taken[truth]
    fixes = np.zeros(len(kind), np.bool_)
    # If several detections would match an object, the best one does.
    _, first = np.unique(truth[near], return_index=True)
    fixes[np.flatnonzero(near)[first]] = True
    mendable = np.zeros(len(taken), np.bool_)
    mendable[truth[near]] = True
    missed = np.flatnonzero(~(taken | mendable)[:-1] & ~flat.truth_ignored)
    return Mistakes(kind=kind, truth=truth, missed=missed, fixes=fixes)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """AP at IoU .50 and what mistakes take from it, 0..1; `None` without objects."""

    ap: float | None
    kinds: dict[Kind, float]
    """The gain in AP if all mistakes of this kind alone were corrected."""
    counts: dict[Kind, int]
    """The mistakes that the gain is about."""
    false_positives: float
    """The gain in AP without any wrong detection."""
    false_negatives: float
    """The gain in AP if missed objects did not count."""


def cost_of(flat: FlatSet, matched: Matched, mistakes: Mistakes) -> Costs:
    """Returns what each kind of mistake costs."""
    wanted = ~flat.truth_ignored
    correct, classes = matched.correct, flat.class_ids
    ids = np.unique(flat.truth_class[wanted])

    def mean_ap(
        correct: BoolArray, classes: IntArray, counts: BoolArray, wanted: BoolArray
    ) -> float:
        order = np.argsort(flat.truth_class[wanted], kind="stable")
        ends = np.searchsorted(flat.truth_class[wanted][order], ids, side="right")
        return _mean_ap(flat.scores, correct, classes, counts, ids, np.diff(ends, prepend=0))

    if not len(ids):
        nothing = dict.fromkeys(KINDS, 0.0)
        return Costs(
            ap=None,
            kinds=nothing,
            counts=mistakes.counts(),
            false_positives=0.0,
            false_negatives=0.0,
        )

    ap = mean_ap(correct, classes, ~matched.ignored, wanted)

    def gained(
        correct: BoolArray, classes: IntArray, counts: BoolArray, wanted: BoolArray
    ) -> float:
        # The sampling of the curve can make a corrected set score a trifle less.
        return max(mean_ap(correct, classes, counts, wanted) - ap, 0.0)

    kinds: dict[Kind, float] = {}
    for index, name in enumerate(KINDS[:MISSED]):
        mended = mistakes.fixes & (mistakes.kind == index)
        counts = ~matched.ignored & ((mistakes.kind != index) | mended)
        of_truth = np.where(mended, mistakes.truth, 0)
        kinds[name] = gained(
            correct | mended,
            np.where(mended, flat.truth_class[of_truth], classes) if mended.any() else classes,
            counts,
            wanted,
        )
    left = wanted.copy()
    left[mistakes.missed] = False
    kinds["missed"] = gained(correct, classes, ~matched.ignored, left)
    taken = np.zeros(len(wanted), np.bool_)
    taken[matched.truth[correct]] = True
    return Costs(
        ap=ap,
        kinds=kinds,
        counts=mistakes.counts(),
        false_positives=gained(correct, classes, correct, wanted),
        false_negatives=gained(correct, classes, ~matched.ignored, wanted & taken),
    )


def _best(flat: FlatSet, chosen: BoolArray) -> tuple[IntArray, FloatArray]:
    """Returns the object with the greatest overlap among chosen pairs, and the overlap, `[D]`.

    -1 and 0 for detections without such a pair.
    """
    places = np.flatnonzero(chosen)
    places = places[first_of_each(flat.pair_detection[places])]
    truth, iou = np.full(len(flat.scores), -1, np.int64), np.zeros(len(flat.scores))
    truth[flat.pair_detection[places]] = flat.pair_truth[places]
    iou[flat.pair_detection[places]] = flat.pair_iou[places]
    return truth, iou


def _mean_ap(
    scores: FloatArray,
    correct: BoolArray,
    classes: IntArray,
    counts: BoolArray,
    ids: IntArray,
    wanted: IntArray,
) -> float:
    """Returns COCO's AP, the mean over the classes of `ids`, `[C]`, with `wanted` objects each.

    A class without objects counts as 0, as in the authors' program.
    """
    order = np.flatnonzero(counts)
    order = order[np.argsort(classes[order], kind="stable")]
    low = np.searchsorted(classes[order], ids)
    high = np.searchsorted(classes[order], ids, side="right")
    levels, aps = np.linspace(0.0, 1.0, 101), []
    for start, end, truths in zip(low, high, wanted, strict=True):
        rows = order[start:end]
        # If no object is left, a recall beyond 1 has no precision.
        precision, recall = precision_recall(scores[rows], correct[rows], max(int(truths), 1))
        best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
        aps.append(best[np.searchsorted(recall, levels)].mean())
    return float(np.mean(aps))


_INF = float("inf")
SIZES = {
    "small": (0.0, 32.0, "area below 32 x 32 pixels"),
    "medium": (32.0, 96.0, "area to 96 x 96 pixels"),
    "large": (96.0, _INF, "area above 96 x 96 pixels"),
}
"""COCO's sizes: side of the square of least and of greatest area, and meaning."""
RATIOS = {
    "tall": (0.0, 0.75, "width below .75 of the height"),
    "square": (0.75, 4 / 3, "width .75 to 1.33 of the height"),
    "wide": (4 / 3, _INF, "width above 1.33 of the height"),
}
"""Least and greatest width divided by height."""


@dataclass(frozen=True, kw_only=True)
class ShapeGroup:
    """The objects and detections of a range of sizes or ratios."""

    about: str
    truths: int
    correct: int
    """Objects that are found."""
    detections: int
    """The correct detections of these objects, and the wrong ones with a box in the range, as COCO
    counts them."""

    @property
    def numbers(self) -> dict[str, float | None]:
        """Recall and precision; `None` without objects."""
        return {
            "precision": self.correct / self.detections
            if self.detections and self.truths
            else None,
            "recall": self.correct / self.truths if self.truths else None,
        }


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Objects by a measure."""

    edges: FloatArray
    """`[B + 1]`, ascending by a constant factor; the first and last bin hold the rest."""
    correct: IntArray
    """`[B]`, objects that are found."""
    missed: IntArray
    """`[B]`, objects that are not."""


@dataclass(frozen=True, kw_only=True)
class ObjectShapes:
    """Sizes and aspect ratios at one threshold of the score."""

    sizes: dict[str, ShapeGroup]
    ratios: dict[str, ShapeGroup]
    side: Histogram
    """By the square root of the area, in pixels."""
    ratio: Histogram
    """By width divided by height."""


def shapes(flat: FlatSet, matched: Matched) -> ObjectShapes:
    """Returns the statistics; the caller chooses the detections, as by `FlatSet.above`."""
    detected = np.zeros(len(flat.truth_class), np.bool_)
    detected[matched.truth[matched.correct]] = True
    wanted, counts = ~flat.truth_ignored, ~matched.ignored
    size = np.sqrt(np.maximum(flat.boxes[:, 2:] - flat.boxes[:, :2], 0).prod(axis=1))[counts]
    truth_size = np.sqrt(np.maximum(flat.truth_area, 0))[wanted]
    ratio, truth_ratio = _ratio(flat.boxes)[counts], _ratio(flat.truth_boxes)[wanted]
    wrong, detected = ~matched.correct[counts], detected[wanted]

    def group(
        truth: FloatArray, detection: FloatArray, low: float, high: float, about: str
    ) -> ShapeGroup:
        inside, detection_inside = (
            (truth >= low) & (truth < high),
            (detection >= low) & (detection < high),
        )
        return ShapeGroup(
            about=about,
            truths=int(inside.sum()),
            correct=int((inside & detected).sum()),
            detections=int((inside & detected).sum() + (detection_inside & wrong).sum()),
        )

    return ObjectShapes(
        sizes={name: group(truth_size, size, *limits) for name, limits in SIZES.items()},
        ratios={name: group(truth_ratio, ratio, *limits) for name, limits in RATIOS.items()},
        side=_histogram(truth_size, detected, np.exp2(np.arange(4, 23) / 2)),
        ratio=_histogram(truth_ratio, detected, np.exp2(np.arange(-6.5, 7) / 2)),
    )


def _ratio(boxes: FloatArray) -> FloatArray:
    """Returns width divided by height, `[N]`; NaN for boxes without area."""
    height, width = (np.maximum(boxes[:, 2:] - boxes[:, :2], 0)).T
    return np.divide(
        width, height, out=np.full(len(boxes), np.nan), where=(width > 0) & (height > 0)
    )


def _histogram(values: FloatArray, detected: BoolArray, edges: FloatArray) -> Histogram:
    """Returns the histogram without empty bins at its ends."""
    known = np.isfinite(values)
    place = np.clip(np.searchsorted(edges, values[known], side="right") - 1, 0, len(edges) - 2)
    counts = [
        np.bincount(place[detected[known] == which], minlength=len(edges) - 1)
        for which in (True, False)
    ]
    used = np.flatnonzero(counts[0] + counts[1])
    # One edge more than bins; none of either without objects.
    first, last = (used[0], used[-1] + 1) if len(used) else (0, 0)
    return Histogram(
        edges=edges[first : last + 1] if last else edges[:0],
        correct=counts[0][first:last],
        missed=counts[1][first:last],
    )


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The analysis of one set of detections.

    `confusion`, `mistakes`, `shapes` are about the detections `shown`: those with at least the best
    score of all classes together, all if none is correct.
    """

    names: dict[int, str]
    """Label map id -> unique name, ascending."""
    image_ids: tuple[str, ...]
    """By place in the set."""
    overall: Confidence
    per_class: dict[int, Confidence]
    """Of every class, by label map id."""
    shown: FlatSet
    matched: Matched
    """Of `shown`."""
    confusion: Confusion
    mistakes: Mistakes
    costs: Costs
    """Over all detections, those with low scores too."""
    shapes: ObjectShapes


def analyse(
    truths: Sequence[ImageTruth],
    results: Sequence[ImageResult],
    class_names: Mapping[int, str],
    *,
    crowds: bool = True,
    difficult: bool = False,
) -> Analysis:
    """Analyses the results of a detector; for the arguments see `flatten`.

    Raises:
        UserError: see `number_images`.
    """
    names = class_keys(class_names)
    flat = flatten(truths, results, class_names, crowds=crowds, difficult=difficult)
    matched = match_classes(flat)
    overall = confidence(flat, matched)
    shown = flat if overall.threshold is None else flat.above(overall.threshold)
    # Worse detections do not change the object that a detection matches.
    count = len(shown.scores)
    kept = Matched(truth=matched.truth[:count], ignored=matched.ignored[:count])
    return Analysis(
        names=names,
        image_ids=tuple(truth.image_id for truth in truths),
        overall=overall,
        per_class=class_confidences(flat, matched, names),
        shown=shown,
        matched=kept,
        confusion=confusion(shown, kept),
        mistakes=find_mistakes(shown, kept),
        costs=cost_of(flat, matched, find_mistakes(flat, matched)),
        shapes=shapes(shown, kept),
    )
