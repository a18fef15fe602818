"""Which of a model's detections are returned: by score, class, and overlap with better ones.

Evaluation and exports do not use this: they take the detections of the model's own suppression.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError, nearest
from stillbox.evaluation.results import RawDetections
from stillbox.evaluation.tiling import Boxes, box_iou
from stillbox.references import Parameter

if TYPE_CHECKING:
    from stillbox.predicting.detections import Detections

ClassesPerObject = Literal["one", "all"]
CLASSES_PER_OBJECT: tuple[ClassesPerObject, ...] = ("one", "all")
MIN_SCORE = 0.3
# The boxes of one object differ little between classes, and different objects rarely overlap so
# much. Suppression within a class has 0.5 to 0.6 in most recipes.
IOU = 0.7


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The detections of an image to return.

    Raises:
        UserError: a value is impossible.
    """

    min_score: float = MIN_SCORE
    """Least score."""
    classes_per_object: ClassesPerObject = "one"
    """`one`: a box is dropped if it overlaps a better one of any class by more than `iou`; `all`:
    only the model's own suppression, which most models do class by class."""
    iou: float = IOU
    """See `classes_per_object`."""
    classes: Sequence[str] = ()
    """Names of the only classes to return; empty: all. This filter comes after the suppression, so
    that it does not change the class of an object."""

    def __post_init__(self) -> None:
        for name in ("min_score", "iou"):
            value = getattr(self, name)
            if not 0 <= value <= 1:  # NaN is in no range
                problem = f"{value:g} is no {'score' if name == 'min_score' else 'overlap'}"
                raise UserError(problem, where=Parameter(name), fix="give 0 to 1")
        if self.classes_per_object not in CLASSES_PER_OBJECT:
            fix = nearest(self.classes_per_object, CLASSES_PER_OBJECT)
            problem = f"there is no {self.classes_per_object!r}"
            raise UserError(problem, where=Parameter("classes_per_object"), fix=fix)
        if isinstance(self.classes, str):
            fix = f'give ["{self.classes}"]'
            raise UserError(
                "this is one name, not a list of them", where=Parameter("classes"), fix=fix
            )

    def check_classes(self, names: Collection[str]) -> None:
        """Refuses classes that are none of the model's `names`.

        Raises:
            UserError: names the first of them, and the nearest of the model's.
        """
        for name in self.classes:
            if name not in names:
                problem = f"the model has no class {name!r}"
                raise UserError(problem, where=Parameter("classes"), fix=nearest(name, names))

    def of(self, detections: "Detections") -> "Detections":
        """Returns the selected detections of an image."""
        detections = detections.at_least(self.min_score)
        if self.classes_per_object == "one":
            detections = detections.pick(without_overlaps(detections.boxes, self.iou))
        if self.classes:
            detections = detections.pick(
                np.isin(np.array(detections.names, object), list(self.classes))
            )
        return detections

    def one_class(self, detections: RawDetections) -> RawDetections:
        """Returns the detections with `classes_per_object` alone applied."""
        if self.classes_per_object == "all":
            return detections
        return detections.pick(without_overlaps(detections.boxes, self.iou))


USUAL = Selection()


def without_overlaps(boxes: Boxes, threshold: float) -> NDArray[np.bool_]:
    """Returns which boxes `[N, 4]`, best first, no better kept one overlaps by more, `[N]`."""
    keep = np.ones(len(boxes), np.bool_)
    for index in range(len(boxes)):
        if keep[index]:
            keep[index + 1 :] &= box_iou(boxes[index], boxes[index + 1 :]) <= threshold
    return keep
