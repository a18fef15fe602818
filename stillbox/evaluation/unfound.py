"""The classes that a detector never finds, and what of the data is likely the reason."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.anchor_cells import (
    LEAST_CELLS,
    anchor_grids,
    cell_side,
    input_boxes,
    larger_input,
)
from stillbox.evaluation.ground_truth import read_sample
from stillbox.evaluation.limits import LimitTable
from stillbox.evaluation.results import FloatArray, ImageTruth
from stillbox.evaluation.scores import Scores
from stillbox.evaluation.views import truths_in_views
from stillbox.experiment import schema
from stillbox.printing import count_text, printable_line

# AP is shown with three places.
_NOTHING = 0.0005
_FEW_BOXES = 50
# Share of the objects of a class that a limit has to cost before it is named as a reason.
_MUCH = 0.5
_SHOWN = 5


def unfound_classes(
    experiment: schema.Experiment,
    scores: Scores,
    truths: Sequence[ImageTruth],
    limits: LimitTable,
) -> Iterator[str]:
    """Yields a sentence for each class with objects and an AP of 0: the likely reason and remedy.

    Classes with the most objects come first, and those after the first few are counted.
    """
    truths = truths_in_views(truths, experiment.data.tiles)
    classes = [
        (row.truths, name, row.class_id)
        for name, row in scores.first.per_class.items()
        if row.truths and _best(scores, name) < _NOTHING
    ]
    classes.sort(key=lambda each: -each[0])
    for objects, name, class_id in classes[:_SHOWN]:
        reasons = list(_reasons(experiment, truths, class_id, name, limits))
        text = "; ".join(reasons) or (
            "no limit, size or number of boxes explains that: too few steps, so train longer"
        )
        start = f"{printable_line(name)} is never found (AP 0 on {count_text(objects, 'object')})"
        yield f"{start}: {text}"
    if len(classes) > _SHOWN:
        more = count_text(len(classes) - _SHOWN, "more class")
        yield f"{more} with an AP of 0: see the table of classes"


def _best(scores: Scores, name: str) -> float:
    return max((value or 0.0 for value in scores.class_numbers(name).values()), default=0.0)


def _reasons(
    experiment: schema.Experiment,
    truths: Sequence[ImageTruth],
    class_id: int,
    name: str,
    limits: LimitTable,
) -> Iterator[str]:
    boxes = _trained_boxes(experiment.data.train)
    if boxes is not None and boxes[class_id] < _FEW_BOXES:
        number = count_text(boxes[class_id], "box")
        yield f"{number} of it to train on: add images that show it"
    if experiment.model.anchor_stage is not None:
        yield from _size(experiment, truths, class_id)
    for row in limits.costly:
        if (share := row.classes.get(name, 0.0)) >= _MUCH:
            most = "" if row.certain_of_class else "up to "
            yield f"the limit on {row.name} costs {most}{100 * share:.0f} % of them: {row.remedy}"


def _size(
    experiment: schema.Experiment, truths: Sequence[ImageTruth], class_id: int
) -> Iterator[str]:
    """Yields a reason if half of the objects are small beside the cells of the finest map."""
    resizer = experiment.model.resizer
    sides = np.concatenate([_sides(truth, class_id, resizer) for truth in truths])
    cells = float(np.median(sides)) / cell_side(anchor_grids(experiment), resizer)
    if cells < LEAST_CELLS:
        remedy = larger_input(resizer, LEAST_CELLS / cells, experiment.data.tiles)[1]
        size = "x".join(map(str, resizer.input_size))
        yield (
            f"half of them are shorter than {cells:.1f} cells of the finest feature map at an "
            f"input of {size}, and {LEAST_CELLS:g} are needed: {remedy}"
        )


def _sides(truth: ImageTruth, class_id: int, resizer: schema.Resizer) -> FloatArray:
    """Returns the roots of the objects' areas, in pixels of the network input."""
    boxes = input_boxes(truth, resizer)[truth.class_ids[~truth.is_crowd] == class_id]
    sides: FloatArray = np.sqrt(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))
    return sides


@lru_cache(maxsize=2)
def _trained_boxes(records: schema.Records) -> Mapping[int, int] | None:
    """Returns the boxes of each class in training records; None: the records are not here."""
    with suppress(UserError):
        sample = read_sample(records)
        boxes = Counter(id_ for truth in sample.truths for id_ in truth.class_ids.tolist())
        factor = sample.total / max(sample.read, 1)
        return Counter({class_id: round(count * factor) for class_id, count in boxes.items()})
    return None
