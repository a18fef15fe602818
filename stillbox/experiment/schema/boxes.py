"""Anchors, and box coders, matchers and similarities, which turn boxes into targets of a loss.

The original has them in `object_detection/anchor_generators`, `box_coders`, `matchers` and
`core/region_similarity_calculator.py`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from stillbox.experiment.schema.ranges import (
    AtLeastOne,
    Count,
    Fraction,
    NonNegative,
    Offset,
    Positive,
    Range,
    Ratios,
    Real,
    Side,
)
from stillbox.experiment.variants import RegisteredConfig


class Anchors(RegisteredConfig):
    """The boxes that predictions are relative to.

    Called as `(config)`; returns a `models.anchors.AnchorGenerator`.
    """

    def count_maps(self) -> int:
        """Returns the number of feature maps that carry anchors."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SsdAnchors(Anchors, kind="ssd"):
    """SSD's anchors: one scale a feature map, several aspect ratios."""

    num_layers: Count = 6
    """Feature maps that carry anchors."""
    min_scale: Positive = 0.2
    """Scale of the finest map, as a share of the image's shorter side."""
    max_scale: Positive = 0.95
    """Scale of the coarsest map."""
    scales: tuple[Positive, ...] = ()
    """Explicit scales, one a map; when given, `min_scale` and `max_scale` are not used."""
    aspect_ratios: Annotated[tuple[Positive, ...], Ratios] = (1.0, 2.0, 3.0, 0.5, 1.0 / 3)
    """Width over height, in the order of the head's channels."""
    interpolated_scale_aspect_ratio: NonNegative = 1.0
    """Aspect ratio of one further anchor between two scales; 0 leaves it out."""
    reduce_boxes_in_lowest_layer: bool = True
    """Three anchors instead of six on the finest map."""
    base_anchor_height: Positive = 1.0
    """Height that scale 1 stands for."""
    base_anchor_width: Positive = 1.0
    """Width that scale 1 stands for."""
    height_strides: tuple[Side, ...] = ()
    """Vertical distance of the centres in pixels, one a map; empty: image over map."""
    width_strides: tuple[Side, ...] = ()
    """Horizontal distance of the centres in pixels."""
    height_offsets: tuple[Offset, ...] = ()
    """First centre from the top in pixels, one a map; empty: half a stride."""
    width_offsets: tuple[Offset, ...] = ()
    """First centre from the left in pixels."""

    def count_maps(self) -> int:
        """Returns how many feature maps carry anchors."""
        return self.num_layers


@dataclass(frozen=True, kw_only=True)
class MultiscaleAnchors(Anchors, kind="multiscale"):
    """RetinaNet's anchors: the same boxes on every level, twice as large on the next one."""

    min_level: Annotated[int, Range(0, 15)] = 3
    """Level of the finest map that carries anchors; level l has a stride of 2^l pixels."""
    max_level: Annotated[int, Range(0, 15)] = 7
    """Level of the coarsest map."""
    anchor_scale: Positive = 4.0
    """Side of the smallest square anchor of a level, in strides."""
    aspect_ratios: Annotated[tuple[Positive, ...], Ratios] = (1.0, 2.0, 0.5)
    """Width over height, in the order of the head's channels."""
    scales_per_octave: Count = 2
    """Anchor sizes of each aspect ratio on a level, at equal ratios up to the next level's."""
    order: Literal["ratio_major", "scale_major"] = "ratio_major"
    """Order at a location, which is that of the head's channels: the sizes of one aspect ratio
    together, or the aspect ratios of one size."""

    def count_maps(self) -> int:
        """Returns how many feature maps carry anchors."""
        return self.max_level - self.min_level + 1


@dataclass(frozen=True, kw_only=True)
class GridAnchors(Anchors, kind="grid"):
    """One feature map with every scale at every aspect ratio; in pixels of the network input."""

    base_height: Side = 256
    """Height of an anchor of scale 1 and aspect ratio 1."""
    base_width: Side = 256
    """Width of an anchor of scale 1 and aspect ratio 1."""
    scales: Annotated[tuple[Positive, ...], Ratios] = (0.5, 1.0, 2.0)
    """Multiples of the base size; those of one aspect ratio stand together."""
    aspect_ratios: Annotated[tuple[Positive, ...], Ratios] = (0.5, 1.0, 2.0)
    """Width over height, for a square base."""
    height_stride: Side = 16
    """Vertical distance of the centres."""
    width_stride: Side = 16
    """Horizontal distance of the centres."""
    height_offset: Offset = 0
    """First centre from the top."""
    width_offset: Offset = 0
    """First centre from the left."""

    def count_maps(self) -> int:
        """Returns how many feature maps carry anchors."""
        return 1


@dataclass(frozen=True, kw_only=True)
class AnchorGrid:
    """What stands on one feature map, in pixels of the network input."""

    sizes: Annotated[tuple[Positive, ...], AtLeastOne] = (32.0,)
    """Side of the square with the anchor's area, for each of the anchors of a location."""
    aspect_ratios: tuple[Positive, ...] = (1.0,)
    """Width over height, one for each of the sizes."""
    height_stride: Side = 16
    """Vertical distance of the centres."""
    width_stride: Side = 16
    """Horizontal distance of the centres."""
    height_offset: Offset = 0
    """First centre from the top."""
    width_offset: Offset = 0
    """First centre from the left."""


@dataclass(frozen=True, kw_only=True)
class FlexibleGridAnchors(Anchors, kind="flexible_grid"):
    """A grid of its own for every feature map."""

    grids: tuple[AnchorGrid, ...] = (AnchorGrid(),)
    """One for each map, from fine to coarse."""

    def count_maps(self) -> int:
        """Returns how many feature maps carry anchors."""
        return len(self.grids)


@dataclass(frozen=True, kw_only=True)
class DefaultBoxMap:
    """The default boxes of one feature map, in pixels of the network input."""

    size: Positive = 21.0
    """Side of the small square."""
    next_size: Positive = 45.0
    """Size of the next map: the large square has the geometric mean of both."""
    step: Positive = 8.0
    """Distance of the centres; the first lies half of it from the edge."""
    aspect_ratios: tuple[Positive, ...] = (2.0,)
    """Each adds two boxes with the area of the small square: so wide to high, and turned."""


@dataclass(frozen=True, kw_only=True)
class DefaultBoxes(Anchors, kind="default_boxes"):
    """Default boxes in whole steps of pixels (arXiv:1512.02325)."""

    maps: Annotated[tuple[DefaultBoxMap, ...], AtLeastOne] = (DefaultBoxMap(),)
    """One for each feature map, from fine to coarse."""
    clip: bool = True
    """Clip centres and sizes to the image. Edges may lie outside all the same."""
    order: Literal["cell_major", "anchor_major"] = "cell_major"
    """Order within a map: all boxes of a location together, or one kind of box at all locations
    after the other. Predictions follow; ties between anchors go to the first in this order."""

    def count_maps(self) -> int:
        """Returns how many feature maps carry anchors."""
        return len(self.maps)


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
