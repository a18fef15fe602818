"""Box coders, matchers and similarities: from boxes to targets.

The original's `object_detection/box_coders`, `matchers` and `core/region_similarity_calculator.py`.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from stillbox.experiment.schema.ranges import *
from stillbox.experiment.variants import Variant


class BoxCoder(Variant):
    """The form in which a box is written relative to its anchor.

    Called as `(config, input_size)`; returns a `models.box_coders.BoxCoder`.
    """

    code_size: ClassVar[int]
    """Numbers for each box."""


@dataclass(frozen=True, kw_only=True)
class FasterRcnnBoxCoder(BoxCoder, kind="faster_rcnn"):
    """Centre offsets over anchor size and logarithms of size ratios, each times a scale."""

    code_size: ClassVar[int] = 4
    y_scale: Positive = 10.0
    """Factor on the vertical offset."""
    x_scale: Positive = 10.0
    """Factor on the horizontal offset."""
    height_scale: Positive = 5.0
    """Factor on the logarithm of the height ratio."""
    width_scale: Positive = 5.0
    """Factor on the logarithm of the width ratio."""
    inclusive_edges: Literal["none", "decode", "both"] = "none"
    """Where the last row and column of pixels count as part of a box, so that it is one pixel of
    the network input higher and wider than the difference of its edges: nowhere, in decoding, or in
    encoding too. With `decode` targets and detections differ by a part of a pixel, as in the
    original."""
    max_log_ratio: NonNegative = 0.0
    """Decoding clips logarithms of ratios to this, so that no box becomes infinite; 0: no limit.
    The original's is log(1000 / 16) = 4.135."""


@dataclass(frozen=True, kw_only=True)
class MeanStddevBoxCoder(BoxCoder, kind="mean_stddev"):
    """Distances of the four edges from those of the anchor."""

    code_size: ClassVar[int] = 4
    stddev: Positive = 0.01
    """Distance that a code of 1 stands for, as a share of the network input."""


@dataclass(frozen=True, kw_only=True)
class SquareBoxCoder(BoxCoder, kind="square"):
    """Centre and side of the square of a box's area: three codes; every decoded box is square."""

    code_size: ClassVar[int] = 3
    y_scale: Positive = 10.0
    """Factor on the vertical offset over the side of the anchor's square."""
    x_scale: Positive = 10.0
    """Factor on the horizontal offset."""
    length_scale: Positive = 5.0
    """Factor on the logarithm of the ratio of the sides."""


class Matcher(Variant):
    """Assigns ground-truth boxes to anchors.

    Called as `(config)`; returns a function from `boxes.matchers.Rows` to matches `[A]`.
    """


@dataclass(frozen=True, kw_only=True)
class ArgmaxMatcher(Matcher, kind="argmax"):
    """Assigns each anchor its most similar ground-truth box, or none (`argmax_matcher.py`)."""

    matched_threshold: Real = 0.5
    """At or above this similarity an anchor is matched."""
    unmatched_threshold: Real = 0.5
    """Below this similarity an anchor is background; in between it is ignored."""
    ignore_thresholds: bool = False
    """Match every anchor, whatever its similarity."""
    negatives_lower_than_unmatched: bool = True
    """False swaps background and ignored."""
    force_match_for_each_row: bool = False
    """Give every ground truth box its best anchor, even below the threshold."""


@dataclass(frozen=True, kw_only=True)
class BipartiteMatcher(Matcher, kind="bipartite"):
    """Every ground truth box has one anchor of its own, the most similar pairs first."""


class Similarity(Variant):
    """What a matcher compares anchors and ground-truth boxes by.

    Called as `(config)`; returns a function of boxes `[..., 4]` that broadcasts.
    """


@dataclass(frozen=True, kw_only=True)
class IouSimilarity(Similarity, kind="iou"):
    """Intersection over union."""


@dataclass(frozen=True, kw_only=True)
class IoaSimilarity(Similarity, kind="ioa"):
    """The part of the anchor that the ground truth box covers."""


@dataclass(frozen=True, kw_only=True)
class NegSqDistSimilarity(Similarity, kind="neg_sq_dist"):
    """Minus the sum of the squared distances of the four edges; 0 is the greatest."""


@dataclass(frozen=True, kw_only=True)
class ThresholdedIouSimilarity(Similarity, kind="thresholded_iou"):
    """1 where the IoU is above a threshold, otherwise 0: all that overlap enough are alike."""

    iou_threshold: Fraction = 0.5
    """Only an IoU above this counts."""
