"""Changes of boxes and classes alone; the picture stays as it is."""

from dataclasses import dataclass
from typing import Literal

from stillbox.experiment.schema.augmentations.base import Augmentation
from stillbox.experiment.schema.ranges import *

JitterMode = Literal[
    "default",
    "expand",
    "shrink",
    "expand_symmetric",
    "shrink_symmetric",
    "expand_symmetric_xy",
    "shrink_symmetric_xy",
]


@dataclass(frozen=True, kw_only=True)
class RandomJitterBoxes(Augmentation, kind="random_jitter_boxes"):
    """Moves the edges of every box by random shares of its size; clipped to the image."""

    ratio: Fraction = 0.05
    """Greatest share by which an edge's distance from the centre grows or shrinks."""
    mode: JitterMode = "default"
    """`default` moves every edge on its own, both ways; `expand` and `shrink` only one way;
    `symmetric` leaves the centre where it is; `symmetric_xy` uses one share for both axes."""


@dataclass(frozen=True, kw_only=True)
class DropLabelProbabilistically(Augmentation, kind="drop_label_probabilistically"):
    """Drops boxes of one class at random."""

    label: PositiveInt = 1
    """Label map id of the class."""
    probability: Fraction = 1.0
    """How likely each of its boxes is dropped."""


@dataclass(frozen=True, kw_only=True)
class RemapLabels(Augmentation, kind="remap_labels"):
    """Makes one class of several."""

    original_labels: tuple[PositiveInt, ...] = ()
    """Label map ids of the classes that change."""
    new_label: PositiveInt = 1
    """Label map id that they become."""
