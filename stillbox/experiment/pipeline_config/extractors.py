"""`SsdFeatureExtractor`: backbone, neck and pixel normalisation in one message."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from stillbox.errors import UserError, nearest
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.layers import (
    NECKS,
    of_a_replica,
    overridden,
    read_hyperparams,
)
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.reading import field_mapping
from stillbox.references import Setting

EFFICIENTDETS = tuple(f"ssd_efficientnet-{size}_bifpn_keras" for size in schema.EFFICIENTNET_SIZES)
"""Values of `feature_extractor.type`."""

# Of ImageNet.
_PIXELS = schema.PixelNormalization(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
_UNSUPPORTED = {
    "depth_multiplier": 1.0,
    "use_explicit_padding": False,
    "use_depthwise": False,
    "override_base_feature_extractor_hyperparams": False,
}

_COMBINE_METHODS = ("fast_attention", "weighted_sum", "sum")
_REFUSED_METHODS = {
    "attention": "its softmax runs over an axis of length 1 in the original, so that it is 'sum'"
}


class _Pyramid(NamedTuple):
    num_repeats: int
    depth: int
    combine: Literal["fast_attention", "sum"] = "fast_attention"


# Where a config has no `bifpn`, by the size of the backbone.
_PYRAMIDS = {
    "b0": _Pyramid(3, 64),
    "b1": _Pyramid(4, 88),
    "b2": _Pyramid(5, 112),
    "b3": _Pyramid(6, 160),
    "b4": _Pyramid(7, 224),
    "b5": _Pyramid(7, 288),
    "b6": _Pyramid(8, 384, "sum"),
    "b7": _Pyramid(8, 384, "sum"),
}


class EfficientDetParts(NamedTuple):
    """The parts that one `feature_extractor` describes."""

    backbone: schema.EfficientNet
    neck: schema.BiFpn
    pixels: schema.PixelNormalization


def read_efficientdet(section: MessageSection, kind: str) -> EfficientDetParts:
    """Reads `feature_extractor` of a `type` in `EFFICIENTDETS`.

    Raises:
        UserError: a field that the original refuses, or a pyramid without sums.
    """
    for name, only in _UNSUPPORTED.items():
        if section.value(name) != only:
            problem = f"an EfficientNet has no {name}"
            raise UserError(
                problem, where=section.where(name), fix=f"leave it at {str(only).lower()}"
            )
    size = re.findall(r"b\d", kind)[0]
    backbone = schema.EFFICIENTNET_SIZES[size]
    # The original builds the whole network, and its checkpoints contain it.
    backbone = dataclasses.replace(
        backbone, conv=of_a_replica(backbone.conv), last_layer=backbone.layers[-1]
    )
    return EfficientDetParts(backbone, _read_bifpn(section, _PYRAMIDS[size]), _PIXELS)


def _read_bifpn(section: MessageSection, default: _Pyramid) -> schema.BiFpn:
    path, least = "model.neck", section.value("min_depth", "model.neck.depth")
    conv = read_hyperparams(section.child("conv_hyperparams"), f"{path}.conv", keras=True)
    values: dict[str, Any] = default._asdict()
    if section.has("bifpn"):
        bifpn = section.child("bifpn")
        values = bifpn.read_fields(path, "min_level", "max_level", num_repeats="num_iterations")
        values["depth"] = bifpn.value("num_filters", f"{path}.depth")
        values["combine"] = bifpn.choose(
            "combine_method", _COMBINE_METHODS, f"{path}.combine", reasons=_REFUSED_METHODS
        )
        for name, ours in (("num_iterations", "num_repeats"), ("num_filters", "depth")):
            if values[ours] < 1:
                bifpn.refuse(name, "a BiFPN without it has no feature maps", "set it to 1 or more")
    values["depth"] = max(values["depth"], least)
    # A separable convolution has two kernels, and both are penalised.
    return schema.BiFpn(conv=dataclasses.replace(conv, regularize_depthwise=True), **values)


MobileBackbone = (
    schema.MobileNetV3Large | schema.MobileNetV3Small | schema.MobileNetEdgeTpu | schema.MobileDet
)
_OVERRIDE = "override_base_feature_extractor_hyperparams"


def _read_slim(
    version: type[schema.MobileNetV3Large | schema.MobileNetV3Small | schema.MobileNetEdgeTpu],
    section: MessageSection,
) -> MobileBackbone:
    if section.value("use_explicit_padding"):
        why = (
            "the original pads the input of every block and its depthwise convolution once more, "
            "so that maps grow from block to block"
        )
        section.refuse("use_explicit_padding", why, "leave it at false")
    base = of_a_replica(version().conv)
    if section.value(_OVERRIDE):
        given = overridden(section, base, keras=False)
        # The network's definition sets these inside the scope of the config's hyperparameters.
        norm = given.batch_norm and dataclasses.replace(given.batch_norm, center=True, scale=True)
        base = dataclasses.replace(given, activation=base.activation, batch_norm=norm)
    return field_mapping(version, "depth_multiplier min_depth")(
        section, "model.backbone", conv=base
    )


def _read_mobiledet(version: type[schema.MobileDet], section: MessageSection) -> MobileBackbone:
    if section.value("use_explicit_padding"):
        section.refuse(
            "use_explicit_padding", "the original's MobileDet has none", "leave it at false"
        )
    if section.value(_OVERRIDE):
        section.note(
            _OVERRIDE,
            f"{_OVERRIDE} has no effect on a MobileDet, which has hyperparameters of its own; "
            f"{Setting('model.backbone.conv', '...')} changes them",
        )
    return field_mapping(version, "depth_multiplier")(
        section, "model.backbone", conv=of_a_replica(version().conv)
    )


MOBILE: dict[str, Callable[[MessageSection], MobileBackbone]] = {
    "ssd_mobilenet_v3_large": partial(_read_slim, schema.MobileNetV3Large),
    "ssd_mobilenet_v3_small": partial(_read_slim, schema.MobileNetV3Small),
    "ssd_mobilenet_edgetpu": partial(_read_slim, schema.MobileNetEdgeTpu),
    "ssd_mobiledet_cpu": partial(_read_mobiledet, schema.MobileDetCpu),
    "ssd_mobiledet_gpu": partial(_read_mobiledet, schema.MobileDetGpu),
    "ssd_mobiledet_dsp": partial(_read_mobiledet, schema.MobileDetDsp),
    "ssd_mobiledet_edgetpu": partial(_read_mobiledet, schema.MobileDetEdgeTpu),
}
"""Readers by the type of the feature extractor."""


MNASFPN = "ssd_mobilenet_v2_mnasfpn"
"""The value of `feature_extractor.type`."""

_PENALTY = schema.L2(weight=4e-5)
_read_mnasfpn_backbone = field_mapping(
    schema.MobileNetV2, "depth_multiplier min_depth", explicit_padding="use_explicit_padding"
)
_read_neck = field_mapping(
    schema.MnasFpn, "depth_multiplier min_depth", explicit_padding="use_explicit_padding"
)


def read_mnasfpn(section: MessageSection) -> tuple[schema.MobileNetV2, schema.MnasFpn]:
    """Reads `feature_extractor` of the type `MNASFPN`."""
    reason = (
        "this extractor has hyperparameters of its own; "
        f"{Setting('model.backbone.conv', '...')} and model.neck.conv=... change them"
    )
    section.ignore(reason, "conv_hyperparams", "override_base_feature_extractor_hyperparams")
    section.ignore("the blocks of this extractor are depthwise anyway", "use_depthwise")
    neck = schema.MnasFpn()
    conv = of_a_replica(neck.conv)
    levels: dict[str, Any] = {"min_level": neck.min_level, "max_level": neck.max_level}
    levels["depth"] = neck.depth
    if section.has("fpn"):
        levels = section.child("fpn").read_fields(
            "model.neck", "min_level", "max_level", depth="additional_layer_depth"
        )
    backbone: schema.MobileNetV2 = _read_mnasfpn_backbone(
        section,
        "model.backbone",
        last_depth=0,
        conv=dataclasses.replace(conv, regularizer=_PENALTY),
        depthwise_initializer=neck.separable_initializer,
    )
    neck = _read_neck(section, "model.neck", conv=conv, **levels)
    return backbone, neck


_RESNETS = tuple(f"ssd_resnet{depth}_v1" for depth in (50, 101, 152))
_INCEPTIONS: dict[str, type[schema.InceptionV2 | schema.InceptionV3]] = {
    "ssd_inception_v2": schema.InceptionV2,
    "ssd_inception_v3": schema.InceptionV3,
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

# Of the second generation's ResNets; Keras does not halve sums of squares.
_KERAS_RESNET = dataclasses.replace(
    schema.ResNetV1().conv,
    regularizer=schema.L2(weight=2e-4),
    initializer=schema.VarianceScaling(factor=1.0, exact_cut=True),
)
RESNET_PIXELS = schema.PixelNormalization(mean=(123.68, 116.779, 103.939), std=(1.0, 1.0, 1.0))
"""The mean colour is subtracted from the network input of a ResNet."""


class Extractor(NamedTuple):
    """The parts that one `feature_extractor` describes."""

    backbone: schema.Backbone
    neck: schema.Neck
    pixels: schema.PixelNormalization
    keras: bool
    """The extractor is of the original's second generation, which differs in a few numbers."""


def read_extractor(section: MessageSection) -> Extractor:
    """Reads `feature_extractor`."""
    kind = read_type(section, EXTRACTORS)
    if kind in EFFICIENTDETS:
        return Extractor(*read_efficientdet(section, kind), keras=True)
    if kind == MNASFPN:
        return Extractor(*read_mnasfpn(section), schema.PixelNormalization(), keras=False)
    keras, neck = kind.endswith("_keras"), re.search(r"(fpn|ppn|embedded)", kind)
    hyperparams = read_hyperparams(
        section.child("conv_hyperparams"), "model.neck.conv", keras=keras
    )
    backbone = _read_backbone(section, kind, keras=keras)
    read_neck = NECKS[neck[1] if neck else ""]
    feature_neck = read_neck(section, backbone, hyperparams)
    if isinstance(feature_neck, schema.Fpn) and keras:
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
        pixels=RESNET_PIXELS
        if isinstance(backbone, schema.ResNetV1)
        else schema.PixelNormalization(),
        keras=keras,
    )


def read_type(
    section: MessageSection, valid: tuple[str, ...], refused: Mapping[str, str] | None = None
) -> str:
    """Returns the `type` of a feature extractor, which is `valid`, or is refused with a reason."""
    kind: str = section.value("type", "model.backbone.kind")
    if not kind and section.is_damaged() and not section.has_any():
        return valid[0]
    if kind in valid:
        return kind
    problem, reason = f"the feature extractor {kind!r} is not supported", (refused or {}).get(kind)
    if reason:
        problem += f": {reason}"
    closest = f"{nearest(kind, valid)}; " if kind and not reason else ""
    raise UserError(
        problem if kind else "the feature extractor has no type",
        where=section.where("type"),
        fix=f"{closest}there is: {', '.join(valid)}",
    )


def _read_backbone(
    section: MessageSection, kind: str, *, keras: bool
) -> (
    schema.InceptionV2
    | schema.InceptionV3
    | schema.MobileNetV1
    | schema.MobileNetV2
    | schema.ResNetV1
    | MobileBackbone
):
    if kind in MOBILE:
        return MOBILE[kind](section)
    if kind in _INCEPTIONS:
        return _read_inception(_INCEPTIONS[kind], section)
    if match := re.search(r"resnet(\d+)_v1", kind):
        return _read_resnet(section, int(match[1]), keras=keras)
    version: Any = schema.MobileNetV1 if "mobilenet_v1" in kind else schema.MobileNetV2
    base = of_a_replica(version().conv)
    if section.value(_OVERRIDE):
        base = overridden(section, base, keras=keras)
        if version is schema.MobileNetV2 and not keras and base.batch_norm:
            # The original sets these of MobileNetV2 inside the scope of the hyperparameters.
            norm = dataclasses.replace(base.batch_norm, center=True, scale=True)
            base = dataclasses.replace(base, activation="relu6", batch_norm=norm)
    narrow: dict[str, Any] = {}
    if section.value("use_depthwise") and "_fpn" in kind:
        # In front of a depthwise pyramid the last layers are thinner.
        narrow = (
            {"last_depths": (512, 256)} if version is schema.MobileNetV1 else {"last_depth": 256}
        )
    backbone: schema.MobileNetV1 | schema.MobileNetV2 = field_mapping(
        version, "depth_multiplier min_depth", explicit_padding="use_explicit_padding"
    )(section, "model.backbone", conv=base, **narrow)
    return _as_keras(backbone, narrow) if keras else backbone


def _as_keras(
    backbone: schema.MobileNetV1 | schema.MobileNetV2, narrow: Mapping[str, Any]
) -> schema.MobileNetV1 | schema.MobileNetV2:
    """Returns a MobileNet with the channels of the second generation.

    Its v1 applies the depth multiplier to the network of Keras, which has applied it already, but
    not to thinner last layers. Its v2 has no thinner last layer, and channels of Keras. Both
    penalise depthwise kernels.
    """
    conv = dataclasses.replace(backbone.conv, regularize_depthwise=True)
    backbone = dataclasses.replace(backbone, conv=conv)
    if isinstance(backbone, schema.MobileNetV2):
        last_depth = schema.MobileNetV2().last_depth
        return dataclasses.replace(backbone, last_depth=last_depth, channels="keras")
    factor = backbone.depth_multiplier
    last = narrow or {"last_depths": tuple(int(d * factor) for d in backbone.last_depths)}
    return dataclasses.replace(backbone, inner_multiplier=factor, **last)


def _read_inception(
    version: type[schema.InceptionV2 | schema.InceptionV3], section: MessageSection
) -> schema.InceptionV2 | schema.InceptionV3:
    if not section.value(_OVERRIDE):
        why = "the original's Inception has no hyperparameters but those of the config"
        section.refuse(_OVERRIDE, why, "set it to true")
    # No scope of its own is around the config's: without batch_norm there, it has none.
    conv = read_hyperparams(section.child("conv_hyperparams"), "model.backbone.conv", keras=False)
    return field_mapping(version, "depth_multiplier min_depth")(
        section, "model.backbone", conv=conv
    )


def _read_resnet(section: MessageSection, depth: int, *, keras: bool) -> schema.ResNetV1:
    section.value("min_depth")  # concerns the pyramid alone, and is set in every config
    for name, only in (("depth_multiplier", 1.0), ("use_explicit_padding", False)):
        if section.value(name) != only:
            problem = f"a ResNet has no {name}"
            raise UserError(
                problem, where=section.where(name), fix=f"leave it at {str(only).lower()}"
            )
    if keras:
        return read_keras_resnet(section, depth)
    base = of_a_replica(schema.ResNetV1().conv)
    if section.value(_OVERRIDE):
        # ResNet passes its batch norm settings to every layer, where they override the config's.
        given = overridden(section, base, keras=False)
        if base.batch_norm and given.batch_norm:
            norm = dataclasses.replace(base.batch_norm, statistics=given.batch_norm.statistics)
            base = dataclasses.replace(given, batch_norm=norm)
    return schema.ResNetV1(depth=depth, conv=base)


def read_keras_resnet(section: MessageSection, depth: int) -> schema.ResNetV1:
    """Returns a ResNet of the second generation: a config overrides all of it, or nothing."""
    conv = of_a_replica(_KERAS_RESNET)
    if section.value(_OVERRIDE):
        conv = overridden(section, conv, keras=True)
        if conv.batch_norm is None:
            section.note(
                _OVERRIDE,
                "without batch_norm the ResNet of the original has neither normalisation nor "
                "biases; here its convolutions have biases",
            )
    return schema.ResNetV1(depth=depth, conv=conv, unit_activation=conv.activation)
