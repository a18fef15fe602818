"""What training minimises (`object_detection/core/losses.py`)."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from stillbox.experiment.schema.ranges import *
from stillbox.experiment.variants import Variant


class ClassificationLoss(Variant):
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


class LocalizationLoss(Variant):
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
