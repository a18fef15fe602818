"""Losses of classes and boxes, and how to compute them (`core/losses.py` of the original)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from stillbox.experiment.schema.ranges import Fraction, NonNegative, Positive
from stillbox.experiment.variants import RegisteredConfig, implements

if TYPE_CHECKING:
    from jax import Array

    Decode = Callable[[Array], Array]


class ClassificationLoss(RegisteredConfig):
    """Loss of the class logits.

    Called as `(config, logits [B, A, C], targets [B, A, C], weights)`, weights `[B, A]` or
    `[B, A, C]`; returns `[B, A]`, weighted.
    """


@dataclass(frozen=True, kw_only=True)
class SigmoidLoss(ClassificationLoss, kind="sigmoid"):
    """Independent binary cross entropy for every class."""


@implements(SigmoidLoss)
def _sigmoid(config: SigmoidLoss, *arrays: "Array") -> "Array":
    from stillbox.boxes.losses import sigmoid_loss

    return sigmoid_loss(*arrays)


@dataclass(frozen=True, kw_only=True)
class SigmoidFocalLoss(ClassificationLoss, kind="sigmoid_focal"):
    """Binary cross entropy that down-weights easy examples (arXiv:1708.02002)."""

    gamma: NonNegative = 2.0
    """Power of the modulating factor `(1 - p_t)`."""
    alpha: Fraction | None = None
    """Weight of positive targets, `1 - alpha` for negative ones; None weighs neither."""


@implements(SigmoidFocalLoss)
def _sigmoid_focal(config: SigmoidFocalLoss, *arrays: "Array") -> "Array":
    from stillbox.boxes.losses import sigmoid_focal_loss

    return sigmoid_focal_loss(*arrays, gamma=config.gamma, alpha=config.alpha)


@dataclass(frozen=True, kw_only=True)
class SoftmaxLoss(ClassificationLoss, kind="softmax"):
    """Cross entropy over all classes, the background among them."""

    logit_scale: Positive = 1.0
    """Divides the logits first."""


@implements(SoftmaxLoss)
def _softmax(config: SoftmaxLoss, *arrays: "Array") -> "Array":
    from stillbox.boxes.losses import softmax_loss

    return softmax_loss(*arrays, logit_scale=config.logit_scale)


@dataclass(frozen=True, kw_only=True)
class SoftmaxAgainstLogitsLoss(ClassificationLoss, kind="softmax_against_logits"):
    """Cross entropy against the softmax of the targets, which are taken as logits as well."""

    logit_scale: Positive = 1.0
    """Divides logits and targets first."""


@implements(SoftmaxAgainstLogitsLoss)
def _softmax_against_logits(config: SoftmaxAgainstLogitsLoss, *arrays: "Array") -> "Array":
    from stillbox.boxes.losses import softmax_against_logits_loss

    return softmax_against_logits_loss(*arrays, logit_scale=config.logit_scale)


@dataclass(frozen=True, kw_only=True)
class BootstrappedSigmoidLoss(ClassificationLoss, kind="bootstrapped_sigmoid"):
    """Binary cross entropy against a mix of target and prediction (arXiv:1412.6596)."""

    alpha: Fraction = 0.95
    """Share of the label in the target; the rest is the model's own prediction."""
    hard: bool = False
    """The model's own prediction is its decision, 0 or 1, instead of its probability."""


@implements(BootstrappedSigmoidLoss)
def _bootstrapped_sigmoid(config: BootstrappedSigmoidLoss, *arrays: "Array") -> "Array":
    from stillbox.boxes.losses import bootstrapped_sigmoid_loss

    return bootstrapped_sigmoid_loss(*arrays, alpha=config.alpha, hard=config.hard)


@dataclass(frozen=True, kw_only=True)
class QualityFocalLoss(ClassificationLoss, kind="quality_focal"):
    """Cross entropy with a quality in 0..1, weighted by the distance from it (arXiv:2006.04388)."""

    beta: NonNegative = 2.0
    """Power of the distance between score and quality."""


@implements(QualityFocalLoss)
def _quality_focal(config: QualityFocalLoss, *arrays: "Array") -> "Array":
    from stillbox.boxes.losses import quality_focal_loss

    return quality_focal_loss(*arrays, beta=config.beta)


@dataclass(frozen=True, kw_only=True)
class VarifocalLoss(ClassificationLoss, kind="varifocal"):
    """Binary cross entropy, weighted by the quality, or focally without one (arXiv:2008.13367)."""

    alpha: NonNegative = 0.75
    """Weight of classes without quality."""
    gamma: NonNegative = 2.0
    """Power of their score."""
    weighted_by_quality: bool = True
    """Weigh classes with a quality by it; otherwise by 1."""


@implements(VarifocalLoss)
def _varifocal(config: VarifocalLoss, *arrays: "Array") -> "Array":
    from stillbox.boxes.losses import varifocal_loss

    return varifocal_loss(
        *arrays,
        alpha=config.alpha,
        gamma=config.gamma,
        weighted_by_quality=config.weighted_by_quality,
    )


class LocalizationLoss(RegisteredConfig):
    """Loss of the boxes of matched anchors.

    Called as `(config, codes [B, A, S], targets [B, A, S], weights [B, A], *, decode, skip_zeros)`;
    `decode` maps codes to boxes `[B, A, 4]`, for losses of boxes. With `skip_zeros`, targets of
    exactly 0 have no loss. Returns `[B, A]`, weighted.
    """

    in_pixels: ClassVar[bool] = False
    """Whether boxes are decoded to pixels, and not normalised: a loss of distances or shapes."""


@dataclass(frozen=True, kw_only=True)
class SmoothL1Loss(LocalizationLoss, kind="smooth_l1"):
    """Huber's loss, summed over the codes of a box."""

    delta: Positive = 1.0
    """Where the parabola goes over into the line."""


@implements(SmoothL1Loss)
def _smooth_l1(config: SmoothL1Loss, *arrays: "Array", skip_zeros: bool, **_: object) -> "Array":
    from stillbox.boxes.losses import smooth_l1_loss

    return smooth_l1_loss(*arrays, delta=config.delta, skip_zeros=skip_zeros)


@dataclass(frozen=True, kw_only=True)
class L1Loss(LocalizationLoss, kind="l1"):
    """Absolute differences, summed over the codes of a box."""


@implements(L1Loss)
def _l1(config: L1Loss, *arrays: "Array", skip_zeros: bool, **_: object) -> "Array":
    from stillbox.boxes.losses import l1_loss

    return l1_loss(*arrays, skip_zeros=skip_zeros)


@dataclass(frozen=True, kw_only=True)
class L2Loss(LocalizationLoss, kind="l2"):
    """Half the squared differences, summed over the codes of a box; weights count squared."""


@implements(L2Loss)
def _l2(config: L2Loss, *arrays: "Array", skip_zeros: bool, **_: object) -> "Array":
    from stillbox.boxes.losses import l2_loss

    return l2_loss(*arrays, skip_zeros=skip_zeros)


@dataclass(frozen=True, kw_only=True)
class IouLoss(LocalizationLoss, kind="iou"):
    """One minus the IoU of the decoded box (arXiv:1608.01471)."""


@implements(IouLoss)
def _iou(
    config: IouLoss,
    codes: "Array",
    targets: "Array",
    weights: "Array",
    *,
    decode: "Decode",
    **_: object,
) -> "Array":
    from stillbox.boxes.losses import iou_loss

    return iou_loss(decode(codes), decode(targets), weights)


@dataclass(frozen=True, kw_only=True)
class GiouLoss(LocalizationLoss, kind="giou"):
    """One minus the generalised IoU of the decoded box (arXiv:1902.09630)."""


@implements(GiouLoss)
def _giou(
    config: GiouLoss,
    codes: "Array",
    targets: "Array",
    weights: "Array",
    *,
    decode: "Decode",
    **_: object,
) -> "Array":
    from stillbox.boxes.losses import giou_loss

    return giou_loss(decode(codes), decode(targets), weights)


@dataclass(frozen=True, kw_only=True)
class DiouLoss(LocalizationLoss, kind="diou"):
    """One minus the distance-IoU of the decoded box (arXiv:1911.08287)."""

    in_pixels = True


@implements(DiouLoss)
def _diou(
    config: DiouLoss,
    codes: "Array",
    targets: "Array",
    weights: "Array",
    *,
    decode: "Decode",
    **_: object,
) -> "Array":
    from stillbox.boxes.losses import diou_loss

    return diou_loss(decode(codes), decode(targets), weights)


@dataclass(frozen=True, kw_only=True)
class CiouLoss(LocalizationLoss, kind="ciou"):
    """One minus the complete IoU of the decoded box (arXiv:1911.08287)."""

    in_pixels = True


@implements(CiouLoss)
def _ciou(
    config: CiouLoss,
    codes: "Array",
    targets: "Array",
    weights: "Array",
    *,
    decode: "Decode",
    **_: object,
) -> "Array":
    from stillbox.boxes.losses import ciou_loss

    return ciou_loss(decode(codes), decode(targets), weights)
