"""Backbones of `SsdFeatureExtractor` that come with SSD's extra layers alone."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from stillbox.experiment.pipeline_config.layers import of_a_replica, overridden
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import (
    MobileDet,
    MobileDetCpu,
    MobileDetDsp,
    MobileDetEdgeTpu,
    MobileDetGpu,
    MobileNetEdgeTpu,
    MobileNetV3Large,
    MobileNetV3Small,
)
from stillbox.experiment.sections import part

MobileBackbone = MobileNetV3Large | MobileNetV3Small | MobileNetEdgeTpu | MobileDet
_OVERRIDE = "override_base_feature_extractor_hyperparams"


def _read_slim(version: Any, section: MessageSection) -> MobileBackbone:  # noqa: ANN401
    if section.value("use_explicit_padding"):
        section.refuse(
            "use_explicit_padding",
            "the original pads the input of every block and its depthwise convolution once more, "
            "so that maps grow from block to block",
            "leave it at false",
        )
    base = of_a_replica(version().conv)
    if section.value(_OVERRIDE):
        given = overridden(section, base, keras=False)
        # The network's definition sets these inside the scope of the config's hyperparameters.
        norm = given.batch_norm and dataclasses.replace(given.batch_norm, center=True, scale=True)
        base = dataclasses.replace(given, activation=base.activation, batch_norm=norm)
    backbone: MobileBackbone = part(version)(section, "model.backbone", conv=base)
    return backbone


def _read_mobiledet(version: Any, section: MessageSection) -> MobileBackbone:  # noqa: ANN401
    if section.value("use_explicit_padding"):
        section.refuse(
            "use_explicit_padding", "the original's MobileDet has none", "leave it at false"
        )
    if section.value(_OVERRIDE):
        section.note(
            _OVERRIDE,
            f"{_OVERRIDE} has no effect on a MobileDet, which has hyperparameters of its own; "
            "--set model.backbone.conv=... changes them",
        )
    backbone: MobileBackbone = part(version)(
        section, "model.backbone", conv=of_a_replica(version().conv)
    )
    return backbone


MOBILE: dict[str, Callable[[MessageSection], MobileBackbone]] = {
    "ssd_mobilenet_v3_large": partial(_read_slim, MobileNetV3Large),
    "ssd_mobilenet_v3_small": partial(_read_slim, MobileNetV3Small),
    "ssd_mobilenet_edgetpu": partial(_read_slim, MobileNetEdgeTpu),
    "ssd_mobiledet_cpu": partial(_read_mobiledet, MobileDetCpu),
    "ssd_mobiledet_gpu": partial(_read_mobiledet, MobileDetGpu),
    "ssd_mobiledet_dsp": partial(_read_mobiledet, MobileDetDsp),
    "ssd_mobiledet_edgetpu": partial(_read_mobiledet, MobileDetEdgeTpu),
}
"""Readers by the type of the feature extractor."""
