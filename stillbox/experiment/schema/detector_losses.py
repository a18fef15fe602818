"""What a detector of one stage minimises; the implementations are in `models/one_stage`."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from stillbox.experiment.schema.losses import (
    ClassificationLoss,
    GiouLoss,
    LocalizationLoss,
    QualityFocalLoss,
    SigmoidFocalLoss,
    SigmoidLoss,
    SmoothL1Loss,
)
from stillbox.experiment.schema.matchers import AtssMatcher, Matcher
from stillbox.experiment.schema.ranges import (
    Fraction,
    FractionBelowOne,
    NonNegative,
    NonNegativeInt,
    PerClass,
    Positive,
)
from stillbox.experiment.variants import RegisteredConfig


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


class DetectorLoss(RegisteredConfig):
    """What a one-stage detector minimises.

    Called as `(config, model, predictions, anchors, level_sizes, inputs)`; returns a
    `models.detector.LossOutput`. `predictions` are of all anchors `[A, 4]`, which are normalised to
    the network input; `level_sizes` are the numbers of anchors of the feature maps, or empty;
    `inputs` is a `models.detector.LossInputs`.
    """

    classification: ClassificationLoss
    """Loss of the class logits."""
    localization: LocalizationLoss
    """Loss of the boxes of matched anchors."""

    @property
    def normalizer(self) -> str:
        """Which images give the matches that the losses are divided by; see `Loss`."""
        return "global"

    @property
    def normalizer_momentum(self) -> float:
        """Decay of the moving average of matches; 0: there is none."""
        return 0.0

    @property
    def class_weights(self) -> tuple[float, ...]:
        """Factors of the classes; empty: all 1."""
        return ()

    @property
    def hard_example_miner(self) -> HardExampleMiner | None:
        """Selects anchors; None: every anchor counts."""
        return None


@dataclass(frozen=True, kw_only=True)
class Loss(DetectorLoss, kind="matched"):
    """Losses against targets that do not depend on predictions, and their normalisation."""

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
    """`global`: losses and matches of the whole batch. `per_replica`: the losses of each
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
    """Codes with a target of exactly 0 have no localisation loss, as in the original, which
    recognises matched anchors by their codes."""
    encode_background_as_zeros: bool = False
    """The target of a background anchor is all zeros instead of one-hot on slot 0."""
    negative_class_weight: NonNegative = 1.0
    """Weight of background anchors in the classification loss."""
    class_weights: Annotated[tuple[NonNegative, ...], PerClass] = ()
    """Factors on the classification loss of each foreground class, one a class; empty: all 1."""
    hard_example_miner: HardExampleMiner | None = None
    """None: every anchor counts."""


BoxWeights = Literal["one", "centerness", "score", "alignment"]


@dataclass(frozen=True, kw_only=True)
class InitialAssignment:
    """How anchors are assigned and weighed while predictions are not yet worth comparing."""

    steps: NonNegativeInt = 0
    """Steps at the start of training; a run of another length stretches them."""
    matcher: Matcher = field(default_factory=AtssMatcher)
    """Assigns ground-truth boxes to anchors."""
    classification: ClassificationLoss = field(default_factory=lambda: SigmoidFocalLoss(alpha=0.25))
    """Loss of the class logits; the target of a matched class is 1."""
    box_weights: BoxWeights = "centerness"
    """As in the loss itself."""


@dataclass(frozen=True, kw_only=True)
class QualityLoss(DetectorLoss, kind="quality"):
    """Losses with targets and weights that follow from how well predicted boxes fit.

    The losses of GFL (arXiv:2006.04388), ATSS (arXiv:1912.02424), VFNet (arXiv:2008.13367) and TOOD
    (arXiv:2108.07755), and localisation distillation (arXiv:2102.12252).
    """

    classification: ClassificationLoss = field(default_factory=QualityFocalLoss)
    """Loss of the class logits."""
    localization: LocalizationLoss = field(default_factory=GiouLoss)
    """Loss of the boxes of matched anchors; one that compares boxes."""
    classification_weight: NonNegative = 1.0
    """Factor on the classification loss."""
    localization_weight: NonNegative = 2.0
    """Factor on the localisation loss."""
    class_targets: Literal["one", "overlap", "alignment"] = "overlap"
    """Target of the class of a matched anchor: 1; the IoU of its predicted box; or its fit with the
    box by the matcher `task_aligned`, scaled for each box so that the best has its IoU. With
    `alignment` the classification loss is divided by the sum of these targets, at least 1, and
    otherwise by the number of matched anchors."""
    empty_images_count: bool = True
    """An image without matched anchors counts as one match in that number."""
    box_weights: BoxWeights = "score"
    """Weight of the box of a matched anchor: 1, its centerness, its highest predicted score, or its
    target of `alignment`. Losses of boxes are divided by the sum of the weights."""
    least_box_weight: Positive = 1.0
    """The sum of the weights is taken to be at least this."""
    distribution_weight: NonNegative = 0.25
    """Factor on the distribution focal loss, which the box coder `distribution` has; 0: none."""
    centerness_weight: NonNegative = 0.0
    """Factor on the cross entropy of the centerness, which the head `atss` predicts; 0: none."""
    class_weights: Annotated[tuple[NonNegative, ...], PerClass] = ()
    """Factors on the classification loss of each foreground class, one a class; empty: all 1."""
    initial: InitialAssignment | None = None
    """What holds in the first steps; None: nothing else."""
