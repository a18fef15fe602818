"""`Loss` and the fields of `Ssd` that say how its parts are put together."""

from typing import Any

from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    BootstrappedSigmoidLoss,
    ClassificationLoss,
    GiouLoss,
    HardExampleMiner,
    IouLoss,
    L1Loss,
    L2Loss,
    LocalizationLoss,
    Loss,
    SigmoidFocalLoss,
    SigmoidLoss,
    SmoothL1Loss,
    SoftmaxAgainstLogitsLoss,
    SoftmaxLoss,
)

_LOSS_TYPES: dict[str, Any] = {
    "BOTH": "both",
    "CLASSIFICATION": "classification",
    "LOCALIZATION": "localization",
}
_LOCALIZATION_LOSSES: dict[str, type[LocalizationLoss]] = {
    "weighted_smooth_l1": SmoothL1Loss,
    "weighted_l2": L2Loss,
    "l1_localization_loss": L1Loss,
    "weighted_iou": IouLoss,
    "weighted_giou": GiouLoss,
}


def read_loss(ssd: Section, path: str) -> Loss:
    """Reads `ssd.loss` and its neighbours.

    The original has no word for whose matches divide a loss: they are always those of the images
    of one replica, whose gradients are then averaged (fact sheet 3.6).
    """
    section = ssd.child("loss")
    return Loss(
        normalizer="per_replica",
        classification=_read_classification(
            section.child("classification_loss"), f"{path}.classification"
        ),
        localization=_read_localization(section.child("localization_loss"), f"{path}.localization"),
        hard_example_miner=_read_miner(section, f"{path}.hard_example_miner"),
        **section.fill(path, "classification_weight", "localization_weight"),
        **ssd.fill(
            path,
            "encode_background_as_zeros",
            "negative_class_weight",
            normalize_by_matches="normalize_loss_by_num_matches",
            normalize_localization_by_code_size="normalize_loc_loss_by_codesize",
        ),
    )


def _read_classification(section: Section, path: str) -> ClassificationLoss:
    name, chosen = section.choose(
        "classification_loss",
        (
            "weighted_sigmoid",
            "weighted_sigmoid_focal",
            "weighted_softmax",
            "weighted_logits_softmax",
            "bootstrapped_sigmoid",
        ),
    )
    if name == "weighted_sigmoid":
        return SigmoidLoss()
    if name == "weighted_softmax":
        return SoftmaxLoss(**chosen.fill(path, "logit_scale"))
    if name == "weighted_logits_softmax":
        return SoftmaxAgainstLogitsLoss(**chosen.fill(path, "logit_scale"))
    if name == "bootstrapped_sigmoid":
        return BootstrappedSigmoidLoss(**chosen.fill(path, "alpha", hard="hard_bootstrap"))
    # Presence decides: an unset alpha weighs nothing, and that is not an alpha of zero.
    alpha = chosen.value("alpha", f"{path}.alpha") if chosen.has("alpha") else None
    return SigmoidFocalLoss(alpha=alpha, **chosen.fill(path, "gamma"))


def _read_localization(section: Section, path: str) -> LocalizationLoss:
    name, chosen = section.choose("localization_loss", tuple(_LOCALIZATION_LOSSES))
    if name == "weighted_smooth_l1":
        return SmoothL1Loss(**chosen.fill(path, "delta"))
    return _LOCALIZATION_LOSSES[name]()


def _read_miner(section: Section, path: str) -> HardExampleMiner | None:
    if not section.has("hard_example_miner"):
        return None
    # The section itself has an origin, because its mere presence can be the mistake.
    section.log.origins[path] = section.position("hard_example_miner")
    miner = section.child("hard_example_miner")
    return HardExampleMiner(
        loss_type=_LOSS_TYPES[miner.value("loss_type", f"{path}.loss_type")],
        **miner.fill(
            path,
            "num_hard_examples",
            "iou_threshold",
            "max_negatives_per_positive",
            "min_negatives_per_image",
        ),
    )
