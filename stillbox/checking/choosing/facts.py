"""What a choice of recipe depends on: images, boxes and their sizes."""

from dataclasses import dataclass

import numpy as np

from stillbox.checking.truth_boxes import read_truth
from stillbox.experiment.schema import FixedShapeResizer, Records
from stillbox.printing import count_text
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource

# Records that are read; the others are alike.
_SAMPLE = 2000
_LEAST_BOXES = 20


@dataclass(frozen=True)
class Facts:
    """A training set in numbers."""

    images: int
    boxes: int
    """Of all images, extrapolated where only some were read."""
    classes: int
    """The highest id of the label map."""
    small_side: float
    """One box in ten is shorter than this part of the image's side (root of its area)."""
    median_side: float
    """Half of the boxes are shorter than this part of the image's side."""
    max_boxes: int
    """At least as many as the fullest image that was read has, with room to spare."""

    def describe(self) -> str:
        """Returns a phrase."""
        return (
            f"{count_text(self.images, 'training image')}, {count_text(self.boxes, 'box')}, "
            f"{count_text(self.classes, 'class')}; half of the boxes are shorter than "
            f"{100 * self.median_side:.0f} % of the image, one in ten than "
            f"{100 * self.small_side:.0f} %"
        )


def read_facts(records: Records) -> Facts:
    """Reads the numbers of a training set; no image is decoded.

    Raises:
        UserError: there are no records or there is no label map.
    """
    label_map = LabelMap.from_file(records.label_map)
    source = ExampleSource(records.paths, label_map, bad_records="drop")
    # The boxes stay relative to their images, whatever the recipe's resizer does.
    truth = read_truth(source, FixedShapeResizer(height=1, width=1), limit=_SAMPLE)
    sides = np.sqrt(np.prod(truth.boxes[:, 2:] - truth.boxes[:, :2], axis=1))
    small, median = np.quantile(sides, (0.1, 0.5)) if len(sides) else (1.0, 1.0)
    fullest = int(np.diff(truth.starts).max(initial=0))
    return Facts(
        images=len(source),
        boxes=round(len(truth.boxes) * len(source) / max(truth.records, 1)),
        classes=label_map.max_id,
        small_side=float(small),
        median_side=float(median),
        max_boxes=max(_LEAST_BOXES, fullest + -fullest % 10),
    )
