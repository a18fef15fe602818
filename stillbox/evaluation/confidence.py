"""Precision, recall and F1 against the score from which detections count."""

from dataclasses import dataclass

import numpy as np

from stillbox.evaluation.flat import Bools, FlatSet, Floats, Ints, match

IOU = 0.5
"""Least IoU of a correct detection in all figures that have a threshold of the score."""


@dataclass(frozen=True, kw_only=True)
class Matched:
    """Which detections are correct, at `IOU`."""

    truth: Ints
    """`[D]`, the object of the detection; -1: none."""
    ignored: Bools
    """`[D]`, unmatched detections on objects that are ignored: they do not count."""

    @property
    def correct(self) -> Bools:
        """`[D]`."""
        return self.truth >= 0


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """Precision, recall and F1 of one class, or of all together."""

    truths: int
    """Objects to find."""
    threshold: float | None
    """The score with the highest F1; `None`: no detection is correct."""
    found: int
    """Detections with at least this score, those that do not count left out."""
    correct: int
    """Correct ones among them."""
    levels: Floats
    """`[101]`, ascending scores."""
    precision: Floats
    """`[101]`, of the detections with at least the score of the level; NaN without detections."""
    recall: Floats
    """`[101]`; NaN without objects."""
    f1: Floats
    """`[101]`; NaN without either."""

    @property
    def at_best(self) -> dict[str, float | None]:
        """Precision, recall and F1 at the threshold."""
        return {
            "precision": self.correct / self.found if self.found else None,
            "recall": self.correct / self.truths if self.truths else None,
            "F1": 2 * self.correct / (self.found + self.truths) if self.truths else None,
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


def confidence(flat: FlatSet, matched: Matched, class_id: int | None = None) -> Confidence:
    """Returns the figures of one class, or of all classes together."""
    counts, wanted = ~matched.ignored, ~flat.truth_ignored
    if class_id is not None:
        counts, wanted = (
            counts & (flat.class_ids == class_id),
            wanted & (flat.truth_class == class_id),
        )
    scores, truths = flat.scores[counts], int(wanted.sum())
    right = np.concatenate([[0], np.cumsum(matched.correct[counts])])
    low, high = scores.min(initial=0.0), scores.max(initial=1.0)
    levels = np.linspace(low, high, 101)
    found = np.searchsorted(-scores, -levels, side="right")
    correct = right[found]
    best = _best(scores, right, truths)
    return Confidence(
        truths=truths,
        threshold=float(scores[best - 1]) if best else None,
        found=best,
        correct=int(right[best]),
        levels=levels,
        precision=_ratio(correct, found),
        recall=_ratio(correct, np.full(101, truths)),
        f1=_ratio(2 * correct, found + truths),
    )


def _best(scores: Floats, right: Ints, truths: int) -> int:
    """Returns how many of the best detections give the highest F1; the fewest of several.

    Args:
        scores: `[D]`, falling.
        right: `[D + 1]`, correct ones among the first 0, 1, ... D.
        truths: objects to find.
    """
    # Detections of one score come together or not at all.
    ends = 1 + np.flatnonzero(np.diff(scores, append=-np.inf))
    if not right[-1]:
        return 0
    return int(ends[np.argmax(right[ends] / (ends + truths))])


def _ratio(part: Ints, whole: Ints) -> Floats:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
