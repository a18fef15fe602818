"""From raw predictions to detections (`object_detection/core/post_processing.py`).

Calibration follows the score converter.
"""

from dataclasses import dataclass, field
from typing import Literal

from stillbox.experiment.schema.calibrations import Calibration
from stillbox.experiment.schema.ranges import (
    Boxes,
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    Real,
)

ScoreConverter = Literal["identity", "sigmoid", "softmax"]


@dataclass(frozen=True, kw_only=True)
class Nms:
    """Greedy non-maximum suppression, class by class unless it says otherwise."""

    score_threshold: Real = 0.0
    """Only scores strictly above this take part."""
    iou_threshold: Fraction = 0.6
    """A box that overlaps a better one of its class by more than this is dropped."""
    drop_at_threshold: bool = False
    """Drop a box that overlaps by exactly the threshold too, as the original's partitioned NMS."""
    soft_sigma: NonNegative = 0.0
    """Above 0 no box is dropped for its overlap: its score is multiplied by `exp(-iou^2 / (2
    soft_sigma))` instead, and `iou_threshold` has no effect (arXiv:1704.04503)."""
    max_candidates_per_class: NonNegativeInt = 0
    """Only so many boxes of one class, those with the best scores, take part; 0: all."""
    max_candidates_per_level: NonNegativeInt = 0
    """Only so many pairs of a box and a class of one feature map, those with the best scores, take
    part; 0: all."""
    max_per_class: Boxes = 100
    """Most boxes of one class in one image."""
    max_total: Boxes = 100
    """Most boxes in one image: the K of `Detections`."""
    class_agnostic: bool = False
    """A box has its best class alone and is suppressed by better boxes of any class;
    `max_per_class` has no effect."""
    change_coordinate_frame: bool = True
    """Boxes are relative to the true image; false: to the network input, padding included."""
    clip: bool = True
    """Clip boxes to the image and drop what lies outside; false leaves them as decoded."""
    empty_boxes: Literal["as_original", "drop", "keep"] = "as_original"
    """Boxes without area. The Object Detection API drops them where it clips, unless `combined`,
    and keeps them where it does not; mmdet always drops them, torchvision always keeps them."""
    clip_to: Literal["image", "input"] = "image"
    """Clip to the true image, or to the whole network input, padding included."""
    clip_margin: NonNegative = 0.0
    """Clip so many pixels of the network input before its bottom and right edges: where a box's
    last row of pixels belongs to it, 1."""
    clip_first: bool = False
    """Measure overlaps on the clipped boxes; otherwise on the boxes as decoded."""
    combined: bool = False
    """As `tf.image.combined_non_max_suppression`: boxes are clipped to the whole network input
    instead of the true image, and those outside are kept."""


@dataclass(frozen=True, kw_only=True)
class BoxEncodingsClip:
    """The range that box encodings are clipped to before they are decoded."""

    min: Real = -10.0
    """Least value of a code."""
    max: Real = 10.0
    """Greatest value of a code."""


@dataclass(frozen=True, kw_only=True)
class Postprocessing:
    """Scores from logits and boxes from encodings, then NMS."""

    box_encodings_clip: BoxEncodingsClip | None = None
    """None: encodings are taken as they are. Training never clips them."""
    score_converter: ScoreConverter = "identity"
    """From logits to scores."""
    logit_scale: Positive = 1.0
    """Divides the logits first."""
    calibration: Calibration | None = None
    """From scores to probabilities; None: scores stay."""
    nms: Nms = field(default_factory=Nms)
    """Which boxes survive."""
