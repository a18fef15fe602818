"""`SsdFeatureExtractor`: backbone and neck in one message."""

import dataclasses

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.layers import SLIM_MOBILENET_V1, read_hyperparams
from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    MobileNetV1,
    SsdLayers,
)

EXTRACTORS = ("ssd_mobilenet_v1",)
"""Values of `feature_extractor.type` that are understood."""

_TAPS, _EXTRA_DEPTHS = SsdLayers().taps, SsdLayers().extra_depths


def read_extractor(section: Section) -> tuple[MobileNetV1, SsdLayers]:
    """Reads `feature_extractor`."""
    kind = section.value("type", "model.backbone.kind")
    if kind not in EXTRACTORS:
        raise UserError(
            f"the feature extractor {kind!r} is not supported"
            if kind
            else "the feature extractor has no type",
            where=section.position("type"),
            fix=f"there is: {', '.join(EXTRACTORS)}",
        )
    # One message feeds base network and extra layers, so its fields have two places each.
    hyperparams = section.child("conv_hyperparams")
    base = SLIM_MOBILENET_V1
    if section.value("override_base_feature_extractor_hyperparams"):
        # The base's arg scope penalises depthwise kernels whatever the config says.
        base = dataclasses.replace(
            read_hyperparams(hyperparams, "model.backbone.conv"), regularize_depthwise=True
        )
    backbone = MobileNetV1(
        conv=base, **section.fill("model.backbone", "depth_multiplier", "min_depth")
    )
    return backbone, _read_extra_layers(section, hyperparams)


def _read_extra_layers(section: Section, hyperparams: Section) -> SsdLayers:
    # num_layers cuts the list of feature maps off: first the extra ones, then the taps.
    layers = section.value("num_layers", "model.neck.extra_depths")
    if not 1 <= layers <= len(_TAPS) + len(_EXTRA_DEPTHS):
        raise UserError(
            f"SsdFeatureExtractor.num_layers = {layers} is out of range",
            where=section.position("num_layers"),
            fix=f"this extractor has 1 to {len(_TAPS) + len(_EXTRA_DEPTHS)} feature maps",
        )
    return SsdLayers(
        taps=_TAPS[:layers],
        extra_depths=_EXTRA_DEPTHS[: max(0, layers - len(_TAPS))],
        conv=read_hyperparams(hyperparams, "model.neck.conv"),
        **section.fill("model.neck", "depth_multiplier", "min_depth"),
    )
