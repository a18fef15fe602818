"""Pascal VOC's average precision (Everingham et al., IJCV 2010, section 4.2).

A detection is compared with the ground-truth box of its class with the greatest overlap. If that
overlap is at least .50 or another limit, the detection is correct, unless a better-scored one
matched the box; if the box is difficult, the detection is ignored. All others are wrong. Difficult
boxes need not be found. Overlaps are computed as in
`object_detection/utils/per_image_evaluation.py`, or with the extra pixel of the VOC devkit
(`VOCevaldet.m`). Crowds are ordinary objects: VOC has none. Open Images V2 has boxes around groups,
which are read as crowds: they need not be found, and wrong detections inside them are ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from stillbox.evaluation.results import (
    BoolArray,
    ClassCounts,
    FloatArray,
    ImageResult,
    ImageTruth,
    SetCounts,
    class_keys,
    covered_matrix,
    iou_matrix,
    number_images,
)
from stillbox.experiment.schema import Evaluation

Interpolation = Literal["all_points", "eleven_points"]
"""The area under the best precisions, or their mean at recalls 0, .1, ... 1 (VOC 2007)."""

_RECALLS = np.arange(101) / 100
# Multiples of 0.1, as in the devkit: 3, 6 and 7 of them are above a recall of so many tenths.
_TENTHS: FloatArray = np.arange(11) * np.float64(0.1)


@dataclass(frozen=True, kw_only=True)
class VocRules:
    """How detections are compared and curves become numbers."""

    interpolation: Interpolation = "all_points"
    min_iou: float = 0.5
    inclusive: bool = False
    """The last row and column of pixels belong to a box, which is one pixel larger each way."""
    ignore_crowds: bool = False
    """Crowds are no truths, and a wrong detection is ignored if `min_iou` of its area is in one."""

    @classmethod
    def of(cls, settings: Evaluation) -> "VocRules":
        """Returns the rules of an experiment."""
        return cls(
            interpolation=settings.voc_interpolation,
            min_iou=settings.voc_min_iou,
            inclusive=settings.voc_inclusive_pixels,
        )


@dataclass(frozen=True, kw_only=True)
class VocClassScores(ClassCounts):
    """The scores of one class; `None` if it has nothing to find."""

    difficult: int
    ap: float | None
    precision: FloatArray | None
    """`[101]`, best precision at the recalls 0, .01, ... 1 or more."""


@dataclass(frozen=True, kw_only=True)
class VocScores(SetCounts):
    """Pascal VOC's scores of a set."""

    mean_ap: float | None
    """Mean of the classes' average precisions; `None`: nothing to find."""
    pooled_ap: float | None
    """Average precision of all detections in one list: classes weigh by their number of boxes."""
    per_class: dict[str, VocClassScores]
    """Every class of the label map by name, those with nothing to find too."""
    difficult: int
    rules: VocRules


@dataclass
class _Class:
    """The detections of one class that count, image after image."""

    scores: list[FloatArray] = field(default_factory=list)
    correct: list[BoolArray] = field(default_factory=list)
    truths: int = 0
    difficult: int = 0
    detections: int = 0


def score_voc(
    truths: Sequence[ImageTruth],
    results: Sequence[ImageResult],
    class_names: Mapping[int, str],
    *,
    rules: VocRules = VocRules(),
) -> VocScores:
    """Scores the results of a detector as Pascal VOC does.

    `truths`, `results` and `class_names`: see `score_coco`. A class with nothing to find is left
    out of both means, with its detections.

    Raises:
        UserError: see `number_images`.
    """
    numbers = number_images(truths, results, class_names)
    by_image = {result.image_id: result for result in results}
    classes = {class_id: _Class() for class_id in class_names}
    for truth in sorted(truths, key=lambda truth: numbers[truth.image_id]):
        _add_image(classes, truth, by_image.get(truth.image_id), rules)
    per_class = {
        key: _score_class(class_id, classes[class_id], rules.interpolation)
        for class_id, key in class_keys(class_names).items()
    }
    aps = [class_scores.ap for class_scores in per_class.values() if class_scores.ap is not None]
    pool = [tally for tally in classes.values() if tally.truths]
    detections = sum(tally.detections for tally in classes.values())
    return VocScores(
        mean_ap=float(np.mean(aps)) if aps else None,
        pooled_ap=average_precision(*_curve(pool), rules.interpolation) if pool else None,
        per_class=per_class,
        images=len(truths),
        truths=sum(tally.truths for tally in classes.values()),
        difficult=sum(tally.difficult for tally in classes.values()),
        detections=detections,
        foreign_detections=sum(len(result.scores) for result in results) - detections,
        rules=rules,
    )


def precision_recall(
    scores: FloatArray, correct: BoolArray, truths: int
) -> tuple[FloatArray, FloatArray]:
    """Returns precision and recall `[D]` after each detection, best first; equal scores keep order.

    `scores` and `correct` are `[D]`, `truths` is the number of boxes to find, at least one.
    """
    right = np.cumsum(correct[np.argsort(-scores, kind="stable")])
    return right / np.arange(1, len(right) + 1), right / truths


def average_precision(
    precision: FloatArray, recall: FloatArray, interpolation: Interpolation
) -> float:
    """Returns the average of the best precision at each recall or more; `[D]`, recall ascending."""
    if interpolation == "eleven_points":
        return float(np.mean(_best_precision(precision, recall, _TENTHS)))
    steps = np.diff(recall, prepend=0.0)
    return float(np.sum(steps * _best_precision(precision, recall, recall)))


def _best_precision(precision: FloatArray, recall: FloatArray, levels: FloatArray) -> FloatArray:
    """Returns `[L]`, the highest precision at these recalls or more; 0 beyond the last."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return np.append(best, 0.0)[np.searchsorted(recall, levels)]


def _add_image(
    classes: dict[int, _Class], truth: ImageTruth, result: ImageResult | None, rules: VocRules
) -> None:
    ignored = truth.is_crowd & rules.ignore_crowds
    for class_id in np.unique(truth.class_ids).tolist():
        difficult = truth.is_difficult[(truth.class_ids == class_id) & ~ignored]
        classes[class_id].truths += int((~difficult).sum())
        classes[class_id].difficult += int(difficult.sum())
    if result is None:
        return
    present = set(truth.class_ids.tolist())
    order = np.lexsort((-result.scores, result.class_ids))
    found_ids, starts = np.unique(result.class_ids[order], return_index=True)
    # Not strict: np.split of an empty array returns one empty part.
    for class_id, rows in zip(found_ids.tolist(), np.split(order, starts[1:]), strict=False):
        if class_id not in classes:
            continue
        tally = classes[class_id]
        tally.detections += len(rows)
        correct = np.zeros(len(rows), np.bool_)
        if class_id in present:
            of_class = truth.class_ids == class_id
            counts, correct = _match_class(result.boxes[rows], truth, of_class, rules)
            rows, correct = rows[counts], correct[counts]
        tally.scores.append(result.scores[rows])
        tally.correct.append(correct)


def _match_class(
    boxes: FloatArray, truth: ImageTruth, of_class: BoolArray, rules: VocRules
) -> tuple[BoolArray, BoolArray]:
    """Returns masks `[D]` of the detections that count and of the correct ones.

    `boxes` is `[D, 4]`, best first; `of_class` marks the ground truth of their class.
    """
    # The devkit's + 1 adds a pixel at the far sides of both boxes.
    extra = np.array([0, 0, 1, 1]) * float(rules.inclusive)
    boxes = boxes + extra
    ignored = truth.is_crowd & rules.ignore_crowds
    wanted, groups = of_class & ~ignored, of_class & ignored
    overlaps = iou_matrix(boxes, truth.boxes[wanted] + extra)
    counts, correct = _match(overlaps, truth.is_difficult[wanted], rules.min_iou)
    if groups.any():
        covered = covered_matrix(boxes, truth.boxes[groups] + extra)
        counts &= correct | (covered.max(axis=1) < rules.min_iou)
    return counts, correct


def _match(
    overlaps: FloatArray, difficult: BoolArray, min_iou: float
) -> tuple[BoolArray, BoolArray]:
    """Returns two masks `[D]`: detections that count, and correct ones.

    `overlaps` is `[D, T]`, IoU of detections, best first, with the ground truth of their class;
    `difficult` is `[T]`.
    """
    counts, correct = np.ones(len(overlaps), np.bool_), np.zeros(len(overlaps), np.bool_)
    taken = np.zeros(len(difficult), np.bool_)
    for detection, row in enumerate(overlaps if len(difficult) else ()):
        best = int(row.argmax())
        if row[best] < min_iou:
            continue
        counts[detection] = not difficult[best]
        correct[detection] = not (difficult[best] or taken[best])
        taken[best] = True
    return counts, correct


def _curve(classes: Sequence[_Class]) -> tuple[FloatArray, FloatArray]:
    scores = np.concatenate([np.empty(0), *(part for tally in classes for part in tally.scores)])
    correct = np.concatenate(
        [np.empty(0, np.bool_), *(part for tally in classes for part in tally.correct)]
    )
    return precision_recall(scores, correct, sum(tally.truths for tally in classes))


def _score_class(class_id: int, tally: _Class, interpolation: Interpolation) -> VocClassScores:
    curve = _curve([tally]) if tally.truths else None
    return VocClassScores(
        class_id=class_id,
        truths=tally.truths,
        difficult=tally.difficult,
        detections=tally.detections,
        ap=average_precision(*curve, interpolation) if curve else None,
        precision=_best_precision(*curve, _RECALLS) if curve else None,
    )
