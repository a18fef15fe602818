"""`SsdFeatureExtractor`: backbone, neck and pixel normalisation in one message."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from stillbox.errors import UserError, nearest
from stillbox.experiment.pipeline_config.efficientdet import EFFICIENTDETS, read_efficientdet
from stillbox.experiment.pipeline_config.layers import of_a_replica, overridden, read_hyperparams
from stillbox.experiment.pipeline_config.mnasfpn import MNASFPN, read_mnasfpn
from stillbox.experiment.pipeline_config.mobile import MOBILE, MobileBackbone
from stillbox.experiment.pipeline_config.necks import NECKS
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import (
    L2,
    Backbone,
    Fpn,
    InceptionV2,
    InceptionV3,
    MobileNetV1,
    MobileNetV2,
    Neck,
    PixelNormalization,
    ResNetV1,
    VarianceScaling,
)
from stillbox.experiment.sections import part

_RESNETS = tuple(f"ssd_resnet{depth}_v1" for depth in (50, 101, 152))
_INCEPTIONS: dict[str, type[InceptionV2 | InceptionV3]] = {
    "ssd_inception_v2": InceptionV2,
    "ssd_inception_v3": InceptionV3,
}
EXTRACTORS = (
    *("ssd_mobilenet_v1", "ssd_mobilenet_v1_fpn", "ssd_mobilenet_v1_ppn"),
    *("ssd_mobilenet_v2", "ssd_mobilenet_v2_fpn", "ssd_mobilenet_v2_ppn"),
    *(f"{resnet}_{neck}" for resnet in _RESNETS for neck in ("fpn", "ppn")),
    "embedded_ssd_mobilenet_v1",
    MNASFPN,
    *_INCEPTIONS,
    *MOBILE,
    *("ssd_mobilenet_v1_keras", "ssd_mobilenet_v1_fpn_keras"),
    *("ssd_mobilenet_v2_keras", "ssd_mobilenet_v2_fpn_keras"),
    *(f"{resnet}_fpn_keras" for resnet in _RESNETS),
    *EFFICIENTDETS,
)
"""Supported values of `feature_extractor.type`."""

_OVERRIDE = "override_base_feature_extractor_hyperparams"
# Of the second generation's ResNets; Keras does not halve sums of squares.
_KERAS_RESNET = dataclasses.replace(
    ResNetV1().conv,
    regularizer=L2(weight=2e-4),
    initializer=VarianceScaling(factor=1.0, exact_cut=True),
)
RESNET_PIXELS = PixelNormalization(mean=(123.68, 116.779, 103.939), std=(1.0, 1.0, 1.0))
"""The mean colour is subtracted from the network input of a ResNet."""


class Extractor(NamedTuple):
    """The parts that one `feature_extractor` describes."""

    backbone: Backbone
    neck: Neck
    pixels: PixelNormalization
    keras: bool
    """It is one of the original's second generation, which differs in a few numbers."""


def read_extractor(section: MessageSection) -> Extractor:
    """Reads `feature_extractor`."""
    kind = read_type(section, EXTRACTORS)
    if kind in EFFICIENTDETS:
        return Extractor(*read_efficientdet(section, kind), keras=True)
    if kind == MNASFPN:
        return Extractor(*read_mnasfpn(section), PixelNormalization(), keras=False)
    keras, neck = kind.endswith("_keras"), re.search(r"(fpn|ppn|embedded)", kind)
    hyperparams = read_hyperparams(
        section.child("conv_hyperparams"), "model.neck.conv", keras=keras
    )
    backbone = _read_backbone(section, kind, keras=keras)
    read_neck = NECKS[neck[1] if neck else ""]
    feature_neck = read_neck(section, backbone, hyperparams)
    if isinstance(feature_neck, Fpn) and keras:
        feature_neck = dataclasses.replace(feature_neck, top_down="smoothed")
        if feature_neck.depthwise:
            conv = dataclasses.replace(feature_neck.conv, regularize_depthwise=True)
            feature_neck = dataclasses.replace(feature_neck, conv=conv, pointwise_defaults=True)
    last = backbone.levels[max(backbone.levels)]
    if last not in feature_neck.taps_of(backbone):
        # The original builds the whole network, and its checkpoints and penalty contain it.
        backbone = dataclasses.replace(backbone, last_layer=last)
    return Extractor(
        backbone=backbone,
        neck=feature_neck,
        pixels=RESNET_PIXELS if isinstance(backbone, ResNetV1) else PixelNormalization(),
        keras=keras,
    )


def read_type(
    section: MessageSection, valid: tuple[str, ...], refused: Mapping[str, str] | None = None
) -> str:
    """Returns the `type` of a feature extractor.

    Args:
        section: the message.
        valid: the supported ones.
        refused: why others are refused.
    """
    kind: str = section.value("type", "model.backbone.kind")
    if not kind and section.is_damaged() and not section.has_any():
        return valid[0]
    if kind in valid:
        return kind
    what, reason = f"the feature extractor {kind!r} is not supported", (refused or {}).get(kind)
    if reason:
        what += f": {reason}"
    closest = f"{nearest(kind, valid)}; " if kind and not reason else ""
    raise UserError(
        what if kind else "the feature extractor has no type",
        where=section.where("type"),
        fix=f"{closest}there is: {', '.join(valid)}",
    )


def _read_backbone(
    section: MessageSection, kind: str, *, keras: bool
) -> InceptionV2 | InceptionV3 | MobileNetV1 | MobileNetV2 | ResNetV1 | MobileBackbone:
    if kind in MOBILE:
        return MOBILE[kind](section)
    if kind in _INCEPTIONS:
        return _read_inception(_INCEPTIONS[kind], section)
    if match := re.search(r"resnet(\d+)_v1", kind):
        return _read_resnet(section, int(match[1]), keras=keras)
    version: Any = MobileNetV1 if "mobilenet_v1" in kind else MobileNetV2
    base = of_a_replica(version().conv)
    if section.value(_OVERRIDE):
        base = overridden(section, base, keras=keras)
        if version is MobileNetV2 and not keras and base.batch_norm:
            # Its definition sets these inside the scope of the config's hyperparameters.
            norm = dataclasses.replace(base.batch_norm, center=True, scale=True)
            base = dataclasses.replace(base, activation="relu6", batch_norm=norm)
    narrow: dict[str, Any] = {}
    if section.value("use_depthwise") and "_fpn" in kind:
        # In front of a depthwise pyramid the last layers are thinner.
        narrow = {"last_depths": (512, 256)} if version is MobileNetV1 else {"last_depth": 256}
    backbone: MobileNetV1 | MobileNetV2 = part(version, explicit_padding="use_explicit_padding")(
        section, "model.backbone", conv=base, **narrow
    )
    return _as_keras(backbone, narrow) if keras else backbone


def _as_keras(
    backbone: MobileNetV1 | MobileNetV2, narrow: Mapping[str, Any]
) -> MobileNetV1 | MobileNetV2:
    """Returns a MobileNet with the channels of the second generation.

    Its v1 applies the depth multiplier to the network of Keras, which has applied it already, but
    not to thinner last layers. Its v2 has no thinner last layer, and channels of Keras. Both
    penalise depthwise kernels.
    """
    conv = dataclasses.replace(backbone.conv, regularize_depthwise=True)
    backbone = dataclasses.replace(backbone, conv=conv)
    if isinstance(backbone, MobileNetV2):
        last_depth = MobileNetV2().last_depth
        return dataclasses.replace(backbone, last_depth=last_depth, channels="keras")
    factor = backbone.depth_multiplier
    last = narrow or {"last_depths": tuple(int(d * factor) for d in backbone.last_depths)}
    return dataclasses.replace(backbone, inner_multiplier=factor, **last)


def _read_inception(
    version: type[InceptionV2 | InceptionV3], section: MessageSection
) -> InceptionV2 | InceptionV3:
    if not section.value(_OVERRIDE):
        section.refuse(
            _OVERRIDE,
            "the original's Inception has no hyperparameters but those of the config",
            "set it to true",
        )
    # No scope of its own is around the config's: without batch_norm there, it has none.
    conv = read_hyperparams(section.child("conv_hyperparams"), "model.backbone.conv", keras=False)
    backbone: InceptionV2 | InceptionV3 = part(version)(section, "model.backbone", conv=conv)
    return backbone


def _read_resnet(section: MessageSection, depth: int, *, keras: bool) -> ResNetV1:
    section.value("min_depth")  # concerns nothing here, and is set in every config
    for name, only in (("depth_multiplier", 1.0), ("use_explicit_padding", False)):
        if section.value(name) != only:
            raise UserError(
                f"a ResNet has no {name}",
                where=section.where(name),
                fix=f"leave it at {str(only).lower()}",
            )
    if keras:
        return read_keras_resnet(section, depth)
    base = of_a_replica(ResNetV1().conv)
    if section.value(_OVERRIDE):
        # ResNet passes its batch norm settings to every layer, where they override the config's.
        given = overridden(section, base, keras=False)
        if base.batch_norm and given.batch_norm:
            norm = dataclasses.replace(base.batch_norm, statistics=given.batch_norm.statistics)
            base = dataclasses.replace(given, batch_norm=norm)
    return ResNetV1(depth=depth, conv=base)


def read_keras_resnet(section: MessageSection, depth: int) -> ResNetV1:
    """Returns a ResNet of the second generation: a config overrides all of it, or nothing."""
    conv = of_a_replica(_KERAS_RESNET)
    if section.value(_OVERRIDE):
        conv = overridden(section, conv, keras=True)
    return ResNetV1(depth=depth, conv=conv, unit_activation=conv.activation)
