"""From boxes to targets and losses: box coders, matchers, similarities, losses.

The original's `object_detection/box_coders`, `matchers`, `core/region_similarity_calculator.py` and
`core/losses.py`.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from stillbox.experiment.schema.ranges import (
    Count,
    Fraction,
    FractionBelowOne,
    NonNegative,
    NonNegativeInt,
    PerClass,
    Positive,
    Real,
)
from stillbox.experiment.variants import RegisteredConfig


class BoxCoder(RegisteredConfig):
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


class ClassificationLoss(RegisteredConfig):
    """Loss of the class logits.

    Called as `(config, logits [B, A, C], targets [B, A, C], weights)`, weights `[B, A]` or
    `[B, A, C]`; returns `[B, A]`, weighted.
    """


@dataclass(frozen=True, kw_only=True)
class SigmoidLoss(ClassificationLoss, kind="sigmoid"):
    """Independent binary cross entropy for every class."""


@dataclass(frozen=True, kw_only=True)
class SigmoidFocalLoss(ClassificationLoss, kind="sigmoid_focal"):
    """Binary cross entropy that down-weights easy examples (arXiv:1708.02002)."""

    gamma: NonNegative = 2.0
    """Power of the modulating factor `(1 - p_t)`."""
    alpha: Fraction | None = None
    """Weight of positive targets, `1 - alpha` for negative ones; None weighs neither."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxLoss(ClassificationLoss, kind="softmax"):
    """Cross entropy over all classes, the background among them."""

    logit_scale: Positive = 1.0
    """Divides the logits first."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxAgainstLogitsLoss(ClassificationLoss, kind="softmax_against_logits"):
    """Cross entropy against the softmax of the targets, which are taken as logits as well."""

    logit_scale: Positive = 1.0
    """Divides logits and targets first."""


@dataclass(frozen=True, kw_only=True)
class BootstrappedSigmoidLoss(ClassificationLoss, kind="bootstrapped_sigmoid"):
    """Binary cross entropy against a mix of target and prediction (arXiv:1412.6596)."""

    alpha: Fraction = 0.95
    """Share of the label in the target; the rest is the model's own prediction."""
    hard: bool = False
    """The model's own prediction is its decision, 0 or 1, instead of its probability."""


class LocalizationLoss(RegisteredConfig):
    """Loss of the boxes of matched anchors.

    Called as `(config, codes [B, A, S], targets [B, A, S], weights [B, A], *, decode, skip_zeros)`;
    `decode` maps codes to boxes `[B, A, 4]`, for losses of boxes. With `skip_zeros`, targets of
    exactly 0 have no loss. Returns `[B, A]`, weighted.
    """


@dataclass(frozen=True, kw_only=True)
class SmoothL1Loss(LocalizationLoss, kind="smooth_l1"):
    """Huber's loss, summed over the codes of a box."""

    delta: Positive = 1.0
    """Where the parabola goes over into the line."""


@dataclass(frozen=True, kw_only=True)
class L1Loss(LocalizationLoss, kind="l1"):
    """Absolute differences, summed over the codes of a box."""


@dataclass(frozen=True, kw_only=True)
class L2Loss(LocalizationLoss, kind="l2"):
    """Half the squared differences, summed over the codes of a box; weights count squared."""


@dataclass(frozen=True, kw_only=True)
class IouLoss(LocalizationLoss, kind="iou"):
    """One minus the IoU of the decoded box (arXiv:1608.01471)."""


@dataclass(frozen=True, kw_only=True)
class GiouLoss(LocalizationLoss, kind="giou"):
    """One minus the generalised IoU of the decoded box (arXiv:1902.09630)."""


@dataclass(frozen=True, kw_only=True)
class DiouLoss(LocalizationLoss, kind="diou"):
    """One minus the distance-IoU of the decoded box (arXiv:1911.08287)."""


@dataclass(frozen=True, kw_only=True)
class CiouLoss(LocalizationLoss, kind="ciou"):
    """One minus the complete IoU of the decoded box (arXiv:1911.08287)."""


@dataclass(frozen=True, kw_only=True)
class HardExampleMiner:
    """Selects the anchors with the largest losses of each image; the others have no loss."""

    num_hard_examples: NonNegativeInt = 64
    """Most anchors that one image may keep; 0 sets no limit."""
    iou_threshold: Fraction = 0.7
    """Boxes that overlap a harder one by more than this are skipped; 1 skips none."""
    loss_type: Literal["both", "classification", "localization"] = "both"
    """The loss that hardness is measured by."""
    max_negatives_per_positive: NonNegativeInt = 0
    """Most background anchors for each matched one; 0 sets no limit."""
    min_negatives_per_image: NonNegativeInt = 0
    """Background anchors that an image keeps even without a matched one."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Classification and localisation losses, their weights and their normalisation."""

    classification: ClassificationLoss = field(default_factory=SigmoidLoss)
    """Loss of the class logits."""
    localization: LocalizationLoss = field(default_factory=SmoothL1Loss)
    """Loss of the boxes of matched anchors."""
    classification_weight: NonNegative = 1.0
    """Factor on the classification loss."""
    localization_weight: NonNegative = 1.0
    """Factor on the localisation loss."""
    normalize_by_matches: bool = True
    """Divide both by the number of matched anchors in the batch, at least 1."""
    normalizer: Literal["global", "per_replica"] = "global"
    """`global`: losses and matches are those of the whole batch. `per_replica`: the losses of each
    replica (`devices.replicas`) are divided by its own matches, then averaged over the replicas, as
    in the originals; a matched anchor weighs less in a replica with many."""
    normalize_per_image: bool = False
    """Divide the losses of each image by its own matched anchors, at least 1, and take the mean
    over the images; `normalize_by_matches` false then only takes the mean."""
    normalize_localization_by_code_size: bool = False
    """Divide the localisation loss by the number of codes that a box is written as."""
    added_matches: NonNegative = 0.0
    """Added to the number of matched anchors that is divided by; with 1 an image without objects
    needs no floor."""
    normalizer_momentum: FractionBelowOne = 0.0
    """Divide by a moving average of that number with this decay instead, corrected for its start at
    0. 0: the batch's own number."""
    skip_zero_codes: bool = False
    """Codes whose target is exactly 0 have no localisation loss, as in the original, which
    recognises matched anchors by their codes."""
    encode_background_as_zeros: bool = False
    """The target of a background anchor is all zeros instead of one-hot on slot 0."""
    negative_class_weight: NonNegative = 1.0
    """Weight of background anchors in the classification loss."""
    class_weights: Annotated[tuple[NonNegative, ...], PerClass] = ()
    """Factors on the classification loss of each foreground class, one a class; empty: all 1."""
    hard_example_miner: HardExampleMiner | None = None
    """None: every anchor counts."""
