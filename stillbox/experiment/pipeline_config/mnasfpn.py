"""`ssd_mobilenet_v2_mnasfpn`: MobileNet v2 without its last convolution, and MnasFPN."""

import dataclasses
from typing import Any

from stillbox.experiment.pipeline_config.layers import of_a_replica
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import L2, MnasFpn, MobileNetV2
from stillbox.experiment.sections import part

MNASFPN = "ssd_mobilenet_v2_mnasfpn"
"""The value of `feature_extractor.type`."""

_PENALTY = L2(weight=4e-5)
_read_backbone = part(MobileNetV2, explicit_padding="use_explicit_padding")
_read_neck = part(MnasFpn, explicit_padding="use_explicit_padding")


def read_mnasfpn(section: MessageSection) -> tuple[MobileNetV2, MnasFpn]:
    """Reads `feature_extractor` of the type `MNASFPN`."""
    section.ignore(
        "this extractor has hyperparameters of its own; --set model.backbone.conv=... and "
        "model.neck.conv=... change them",
        "conv_hyperparams",
        "override_base_feature_extractor_hyperparams",
    )
    section.ignore("the blocks of this extractor are depthwise anyway", "use_depthwise")
    neck = MnasFpn()
    conv = of_a_replica(neck.conv)
    levels: dict[str, Any] = {"min_level": neck.min_level, "max_level": neck.max_level}
    levels["depth"] = neck.depth
    if section.has("fpn"):
        levels = section.child("fpn").fill(
            "model.neck", "min_level", "max_level", depth="additional_layer_depth"
        )
    backbone: MobileNetV2 = _read_backbone(
        section,
        "model.backbone",
        last_depth=0,
        conv=dataclasses.replace(conv, regularizer=_PENALTY),
        depthwise_initializer=neck.separable_initializer,
    )
    neck = _read_neck(section, "model.neck", conv=conv, **levels)
    return backbone, neck
