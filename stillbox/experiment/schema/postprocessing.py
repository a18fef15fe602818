"""From raw predictions to detections (fact sheet 3.7)."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Nms:
    """Greedy non-maximum suppression, class by class."""

    score_threshold: float = 0.0
    """Only scores strictly above this take part."""
    iou_threshold: float = 0.6
    """A box that overlaps a better one of its class by more than this is dropped."""
    max_per_class: int = 100
    """Most boxes of one class in one image."""
    max_total: int = 100
    """Most boxes in one image: the K of `Detections`."""


@dataclass(frozen=True, kw_only=True)
class Postprocessing:
    """Scores from logits, then NMS."""

    score_converter: Literal["identity", "sigmoid", "softmax"] = "identity"
    """From logits to scores."""
    logit_scale: float = 1.0
    """Divides the logits first."""
    nms: Nms = field(default_factory=Nms)
    """Which boxes survive."""
