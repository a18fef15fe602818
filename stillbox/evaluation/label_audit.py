"""Labels that are probably wrong: missing, spurious, of the wrong class, or badly placed.

The detections of a trained model are matched with the labels of each image, and each disagreement
is ranked by how sure the model is. A model that was trained on the same labels serves: few wrong
labels do not teach a detector to repeat them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from stillbox.evaluation.results import (
    BoolArray,
    FloatArray,
    ImageResult,
    ImageTruth,
    IntArray,
    covered_matrix,
    iou_matrix,
)

Fault = Literal["missing", "spurious", "wrong class", "badly placed"]
FAULTS: tuple[Fault, ...] = get_args(Fault)

MEANINGS: dict[Fault, str] = {
    "missing": "the model finds an object where no label is",
    "spurious": "the model finds nothing where a label is",
    "wrong class": "the model finds an object of another class in the place of the label",
    "badly placed": "the model finds the object beside its label, or of another size",
}

# IoU from which a detection is in the place of a label, is badly placed beside it, and finds it.
_SAME, _NEAR, _WELL = 0.5, 0.1, 0.6
# IoU from which a detection speaks against a label without an object.
_TOUCHES = 0.3
# Scores below it are noise.
_LEAST_SCORE = 0.2


class Box(NamedTuple):
    """A box and its class."""

    sides: tuple[float, ...]
    """`ymin, xmin, ymax, xmax` in pixels."""
    class_id: int


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """A label that is probably wrong, or lacking."""

    image_id: str
    fault: Fault
    sureness: float
    """0..1."""
    label: Box | None
    """`None`: the label is missing."""
    label_index: int | None
    """Place of the label among the labels of the image."""
    suggestion: Box | None
    """What the model finds; `None`: nothing."""


def audit_labels(
    truths: Sequence[ImageTruth], results: Sequence[ImageResult]
) -> tuple[Suspicion, ...]:
    """Returns what is suspicious in the labels, the surest first; one suspicion a label.

    Both have the same images in the same order. Crowds, and what lies in them, are not judged.
    """
    every = [
        suspicion
        for truth, result in zip(truths, results, strict=True)
        for suspicion in _suspicions(_pair(truth, result))
    ]
    return tuple(sorted(every, key=lambda each: -each.sureness))


def surest(suspicions: Sequence[Suspicion], number: int) -> tuple[Suspicion, ...]:
    """Returns the surest suspicions of each fault, `number` at most, in their order."""
    counts: Counter[Fault] = Counter()
    chosen = []
    for each in suspicions:
        counts[each.fault] += 1
        chosen += [each] * (counts[each.fault] <= number)
    return tuple(chosen)


class _Pairs(NamedTuple):
    """The labels of an image, L, its D detections, and their overlaps."""

    image_id: str
    places: IntArray
    """`[L]`, place of each label among all of the image."""
    labels: FloatArray
    label_classes: IntArray
    boxes: FloatArray
    scores: FloatArray
    class_ids: IntArray
    iou: FloatArray
    """`[L, D]`."""
    same: BoolArray
    """`[L, D]`, label and detection have one class."""
    nearest: BoolArray
    """`[L, D]`, the label is the one that the detection overlaps most."""


def _pair(truth: ImageTruth, result: ImageResult) -> _Pairs:
    crowds = truth.boxes[truth.is_crowd]
    free = covered_matrix(result.boxes, crowds).max(axis=1, initial=0.0) < _SAME
    places = np.flatnonzero(~truth.is_crowd)
    labels, label_classes = truth.boxes[places], truth.class_ids[places]
    boxes, class_ids = result.boxes[free], result.class_ids[free]
    iou = iou_matrix(labels, boxes)
    return _Pairs(
        image_id=truth.image_id,
        places=places,
        labels=labels,
        label_classes=label_classes,
        boxes=boxes,
        scores=result.scores[free],
        class_ids=class_ids,
        iou=iou,
        same=label_classes[:, None] == class_ids,
        nearest=iou == iou.max(axis=0, initial=0.0),
    )


def _suspicions(pairs: _Pairs) -> Iterator[Suspicion]:
    used = set()
    for label in range(len(pairs.labels)):
        fault, sureness, detection = _judged(pairs, label)
        if sureness >= _LEAST_SCORE:
            used.add(detection)
        yield _suspicion(pairs, fault, sureness, label, detection)
    for detection in _unlabelled(pairs, used):
        yield _suspicion(pairs, "missing", pairs.scores[detection], -1, detection)


def _suspicion(
    pairs: _Pairs, fault: Fault, sureness: float, label: int, detection: int
) -> Suspicion:
    """Returns a suspicion; -1 stands for no label, and for no detection."""
    is_labelled, is_shown = label >= 0, detection >= 0
    return Suspicion(
        image_id=pairs.image_id,
        fault=fault,
        sureness=float(sureness),
        label=_box(pairs.labels, pairs.label_classes, label) if is_labelled else None,
        label_index=int(pairs.places[label]) if is_labelled else None,
        suggestion=_box(pairs.boxes, pairs.class_ids, detection) if is_shown else None,
    )


def _box(boxes: FloatArray, class_ids: IntArray, place: int) -> Box:
    return Box(tuple(boxes[place].tolist()), int(class_ids[place]))


def _judged(pairs: _Pairs, label: int) -> tuple[Fault, float, int]:
    """Returns the most likely fault of a label, its sureness, and the detection that shows it.

    The sureness is the score of the detection that shows the fault, times the doubt that is left by
    the detection that confirms the label. Nothing shows a spurious label but that doubt.
    """
    iou, same, nearest = pairs.iou[label], pairs.same[label], pairs.nearest[label]
    inside = iou >= _SAME
    doubt = 1 - _best(pairs, same & inside)[0]
    misplaced = 1 - _best(pairs, same & (iou >= _WELL))[0]
    other, of_other = _best(pairs, ~same & nearest & inside)
    beside, of_beside = _best(pairs, same & nearest & (iou >= _NEAR) & (iou < _WELL))
    faults: list[tuple[Fault, float, int]] = []
    if other >= _LEAST_SCORE:
        faults.append(("wrong class", other * doubt, of_other))
    if beside >= _LEAST_SCORE:
        faults.append(("badly placed", beside * misplaced, of_beside))
    touching = _best(pairs, (iou >= _TOUCHES) & (nearest | inside))[0]
    if not faults or touching < _LEAST_SCORE:
        faults.append(("spurious", doubt * (1 - touching), -1))
    return max(faults, key=lambda fault: fault[1])


def _best(pairs: _Pairs, chosen: BoolArray) -> tuple[float, int]:
    """Returns the greatest score of chosen detections and its place; 0 and -1 without any."""
    if not chosen.any():
        return 0.0, -1
    place = int(np.where(chosen, pairs.scores, -1).argmax())
    return float(pairs.scores[place]), place


def _unlabelled(pairs: _Pairs, used: set[int]) -> Iterator[int]:
    """Yields the detections without a label, the best first and each object once."""
    kept: list[int] = []
    for detection in np.argsort(-pairs.scores, kind="stable").tolist():
        overlap, box = pairs.iou[:, detection], pairs.boxes[[detection]]
        # What no better detection finds may be this one, badly placed.
        beside = (overlap >= _TOUCHES) & pairs.nearest[:, detection] & pairs.same[:, detection]
        better = pairs.same & (pairs.iou >= _WELL) & (pairs.scores >= pairs.scores[detection])
        taken = detection in used or overlap.max(initial=0.0) >= _SAME
        if taken or (beside & ~better.any(axis=1)).any():
            continue
        if not kept or iou_matrix(box, pairs.boxes[kept]).max() < _SAME:
            kept.append(detection)
            yield detection
