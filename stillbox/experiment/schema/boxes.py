"""Box coders, matchers and similarities, which turn boxes into the targets of a loss.

The original has them in `object_detection/box_coders`, `matchers` and
`core/region_similarity_calculator.py`.
"""

from dataclasses import dataclass
from typing import Literal

from stillbox.experiment.schema.ranges import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Real,
)
from stillbox.experiment.variants import RegisteredConfig


class BoxCoder(RegisteredConfig):
    """The form in which a box is written relative to its anchor.

    Called as `(config, input_size)`; returns a `models.targets.BoxCodec`.
    """

    @property
    def code_size(self) -> int:
        """Numbers for each box."""
        return 4


@dataclass(frozen=True, kw_only=True)
class FasterRcnnBoxCoder(BoxCoder, kind="faster_rcnn"):
    """Centre offsets over anchor size and logarithms of size ratios, each times a scale."""

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

    stddev: Positive = 0.01
    """Distance that a code of 1 stands for, as a share of the network input."""


@dataclass(frozen=True, kw_only=True)
class SquareBoxCoder(BoxCoder, kind="square"):
    """Centre and side of the square of a box's area: three codes; every decoded box is square."""

    y_scale: Positive = 10.0
    """Factor on the vertical offset over the side of the anchor's square."""
    x_scale: Positive = 10.0
    """Factor on the horizontal offset."""
    length_scale: Positive = 5.0
    """Factor on the logarithm of the ratio of the sides."""

    @property
    def code_size(self) -> int:
        """Numbers for each box."""
        return 3


@dataclass(frozen=True, kw_only=True)
class DistanceBoxCoder(BoxCoder, kind="distances"):
    """Distances of the four edges from the centre of the anchor (arXiv:1904.01355)."""

    units_in_anchor: Positive = 8.0
    """Units of distance in the side of an anchor. With anchors of eight strides, 8 makes the stride
    the unit."""


@dataclass(frozen=True, kw_only=True)
class DistributionBoxCoder(DistanceBoxCoder, kind="distribution"):
    """The same distances, each the mean of a predicted distribution (arXiv:2006.04388).

    A distance has `longest` + 1 logits, those of the distances 0 to `longest`.
    """

    longest: Count = 16
    """Greatest distance."""

    @property
    def code_size(self) -> int:
        """Numbers for each box."""
        return 4 * (self.longest + 1)


BoxWeights = Literal["one", "centerness", "score", "alignment"]


class Matcher(RegisteredConfig):
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
    keep_best_of_each_row: bool = False
    """Give the best anchors of every ground truth box their own most similar box, even below the
    threshold: torchvision's `allow_low_quality_matches`."""


@dataclass(frozen=True, kw_only=True)
class BipartiteMatcher(Matcher, kind="bipartite"):
    """Every ground truth box has one anchor of its own, the most similar pairs first."""


@dataclass(frozen=True, kw_only=True)
class AtssMatcher(Matcher, kind="atss"):
    """Assigns anchors by a threshold that follows from each box's candidates (arXiv:1912.02424).

    Candidates are the anchors whose centres are nearest to the box's; the threshold is mean plus
    standard deviation of their similarities. One square anchor at each location is enough. A box
    may get no anchor.
    """

    candidates: Count = 9
    """Candidates of each feature map."""


@dataclass(frozen=True, kw_only=True)
class TaskAlignedMatcher(Matcher, kind="task_aligned"):
    """Assigns the anchors whose predictions already fit a box best (arXiv:2108.07755).

    Fit is `s^alpha u^beta`, of the score s of the box's class and the IoU u of the predicted box.
    Only anchors with their centre in the box are assigned. It needs the loss `quality`.
    """

    alpha: NonNegative = 1.0
    """Exponent of the score."""
    beta: NonNegative = 6.0
    """Exponent of the IoU."""
    candidates: Count = 13
    """Anchors of a box at most, on all feature maps together."""


class Similarity(RegisteredConfig):
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
