"""`Loss` and the fields of `Ssd` that combine its parts."""

from stillbox.experiment.pipeline_config.section import MessageSection, choice
from stillbox.experiment.schema import (
    BootstrappedSigmoidLoss,
    GiouLoss,
    HardExampleMiner,
    IouLoss,
    L1Loss,
    L2Loss,
    Loss,
    SigmoidFocalLoss,
    SigmoidLoss,
    SmoothL1Loss,
    SoftmaxAgainstLogitsLoss,
    SoftmaxLoss,
)
from stillbox.experiment.sections import part

read_classification = choice(
    "classification_loss",
    {
        "weighted_sigmoid": part(SigmoidLoss),
        # An alpha that is not set weighs nothing, unlike an alpha of zero.
        "weighted_sigmoid_focal": part(SigmoidFocalLoss, ("alpha",)),
        "weighted_softmax": part(SoftmaxLoss),
        "weighted_logits_softmax": part(SoftmaxAgainstLogitsLoss),
        "bootstrapped_sigmoid": part(BootstrappedSigmoidLoss, hard="hard_bootstrap"),
    },
)
"""Reads `ClassificationLoss`."""

_read_localization = choice(
    "localization_loss",
    {
        "weighted_smooth_l1": part(SmoothL1Loss),
        "weighted_l2": part(L2Loss),
        "l1_localization_loss": part(L1Loss),
        "weighted_iou": part(IouLoss),
        "weighted_giou": part(GiouLoss),
    },
)


def read_loss(ssd: MessageSection, path: str) -> Loss:
    """Reads `ssd.loss` and its neighbours.

    The original always divides a loss by the matches of one replica's images and averages the
    gradients of the replicas (`object_detection/meta_architectures/ssd_meta_arch.py`, `loss`).
    """
    section = ssd.child("loss")
    return Loss(
        normalizer="per_replica",
        classification=read_classification(
            section.child("classification_loss"), f"{path}.classification"
        ),
        localization=_read_localization(section.child("localization_loss"), f"{path}.localization"),
        hard_example_miner=read_miner(section, path),
        **section.fill(path, "classification_weight", "localization_weight"),
        **ssd.fill(
            path,
            "encode_background_as_zeros",
            "negative_class_weight",
            normalize_by_matches="normalize_loss_by_num_matches",
            normalize_localization_by_code_size="normalize_loc_loss_by_codesize",
        ),
    )


def read_miner(section: MessageSection, path: str, **values: int) -> HardExampleMiner | None:
    """Reads the `hard_example_miner` of a section, if it has one.

    Args:
        section: the message that has it.
        path: the place of that message in the experiment.
        values: fields that are not read.
    """
    name = "hard_example_miner"
    if not section.has(name):
        return None
    # The section itself has an origin, because its mere presence can be the mistake.
    section.log.origins[f"{path}.{name}"] = section.where(name)
    reader = part(HardExampleMiner)
    miner: HardExampleMiner = reader(section.child(name), f"{path}.{name}", **values)
    return miner
