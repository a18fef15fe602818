"""The six kinds of mistakes, and what each costs in AP.

Definitions: Bolya et al. 2020, "TIDE: A General Toolbox for Identifying Object Detection Errors".
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from stillbox.evaluation.confidence import IOU, Matched
from stillbox.evaluation.flat import BACKGROUND_IOU, Bools, FlatSet, Floats, Ints, first_of_each
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

    kind: Ints
    """`[D]`, index into `KINDS`; -1: correct, or ignored."""
    truth: Ints
    """`[D]`, the object that the detection of a mistake belongs to; -1: none."""
    missed: Ints
    """`[M]`, missed objects."""
    fixes: Bools
    """`[D]`, whether the mended detection would be the one that finds its object."""

    def counts(self) -> dict[Kind, int]:
        """Returns the number of mistakes of each kind."""
        many = np.bincount(self.kind[self.kind >= 0], minlength=len(KINDS))
        many[MISSED] = len(self.missed)
        return dict(zip(KINDS, many.tolist(), strict=True))


def find_mistakes(flat: FlatSet, matched: Matched) -> Mistakes:
    """Gives every detection that is wrong its kind, and finds the missed objects."""
    same, iou = flat.pair_same_class, flat.pair_iou
    real = ~flat.truth_ignored[flat.pair_truth]
    # One more than there are objects, for detections without one, -1.
    taken = np.zeros(len(flat.truth_class) + 1, np.bool_)
    taken[matched.truth[matched.correct]] = True
    own, own_iou = _best(flat, real & same)
    other, other_iou = _best(flat, real & ~same)
    used, used_iou = _best(flat, real & same & taken[flat.pair_truth])
    nearest = _best(flat, real & (iou > BACKGROUND_IOU))[1]
    rules = [
        (MISPLACED, (own_iou >= BACKGROUND_IOU) & (own_iou <= IOU), own),
        (CONFUSED, other_iou >= IOU, other),
        (DOUBLE, used_iou >= IOU, used),
        (BACKGROUND, nearest <= BACKGROUND_IOU, np.full_like(own, -1)),
    ]
    wrong = ~matched.correct & ~matched.ignored
    kind = np.select([fits for _, fits, _ in rules], [kind for kind, *_ in rules], BOTH)
    truth = np.select([fits for _, fits, _ in rules], [truth for *_, truth in rules], -1)
    kind, truth = np.where(wrong, kind, -1), np.where(wrong, truth, -1)
    near = ((kind == MISPLACED) | (kind == CONFUSED)) & ~taken[truth]
    fixes = np.zeros(len(kind), np.bool_)
    # Of several detections that would find an object, the best one does.
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
    """AP that would be gained if all mistakes of the kind were mended, and no others."""
    false_positives: float
    """AP that would be gained without any wrong detection."""
    false_negatives: float
    """AP that would be gained if the objects that are not found did not count."""


def cost_of(flat: FlatSet, matched: Matched, mistakes: Mistakes) -> Costs:
    """Returns what each kind of mistake costs."""
    wanted = ~flat.truth_ignored
    correct, classes = matched.correct, flat.class_ids
    ids = np.unique(flat.truth_class[wanted])

    def mean_ap(correct: Bools, classes: Ints, counts: Bools, wanted: Bools) -> float:
        order = np.argsort(flat.truth_class[wanted], kind="stable")
        ends = np.searchsorted(flat.truth_class[wanted][order], ids, side="right")
        return _mean_ap(flat.scores, correct, classes, counts, ids, np.diff(ends, prepend=0))

    if not len(ids):
        return Costs(
            ap=None, kinds=dict.fromkeys(KINDS, 0.0), false_positives=0.0, false_negatives=0.0
        )

    ap = mean_ap(correct, classes, ~matched.ignored, wanted)

    def gained(correct: Bools, classes: Ints, counts: Bools, wanted: Bools) -> float:
        # The sampling of the curve can make a mended set score a trifle less.
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
        false_positives=gained(correct, classes, correct, wanted),
        false_negatives=gained(correct, classes, ~matched.ignored, wanted & taken),
    )


def _best(flat: FlatSet, chosen: Bools) -> tuple[Ints, Floats]:
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
    scores: Floats, correct: Bools, classes: Ints, counts: Bools, ids: Ints, wanted: Ints
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
        own = order[start:end]
        # With no object left, a recall beyond 1 reads no precision.
        precision, recall = precision_recall(scores[own], correct[own], max(int(truths), 1))
        best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
        aps.append(best[np.searchsorted(recall, levels)].mean())
    return float(np.mean(aps))
