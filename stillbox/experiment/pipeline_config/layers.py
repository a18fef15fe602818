"""`Hyperparams` of convolutions, `ImageResizer`, and the necks of a `SsdFeatureExtractor`.

Hyperparameters say how convolutions are regularised, initialised, normalised and activated. The
necks are extra layers, pooling and feature pyramids.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.section import MessageSection, choice
from stillbox.experiment.reading import field_mapping

# Plain batch norm takes the statistics of one replica's images, synchronised batch norm of all.
_NORMS = {"batch_norm": "per_replica", "sync_batch_norm": "global"}
_REGULARIZERS = {
    "l2_regularizer": field_mapping(schema.L2, "weight"),
    "l1_regularizer": field_mapping(schema.L1, "weight"),
}
_read_regularizer = choice("regularizer_oneof", _REGULARIZERS)
_read_initializer = choice(
    "initializer_oneof",
    {
        "truncated_normal_initializer": field_mapping(schema.TruncatedNormal, "mean stddev"),
        "random_normal_initializer": field_mapping(schema.RandomNormal, "mean stddev"),
        "variance_scaling_initializer": field_mapping(
            schema.VarianceScaling, "factor uniform mode"
        ),
    },
)
_read_conv = field_mapping(schema.ConvHyperparams, "activation", force_bias="force_use_bias")


def read_hyperparams(section: MessageSection, path: str, *, keras: bool) -> schema.ConvHyperparams:
    """Reads a `Hyperparams` message.

    Models of the second generation (`keras`) leave depthwise kernels without a penalty where the
    config does not say; the first generation does not.
    """
    depthwise = section.value("regularize_depthwise", f"{path}.regularize_depthwise")
    regularizer = section.child("regularizer")
    # Unlike in other choices, setting no member is common: no penalty.
    has_penalty = any(regularizer.has(name) for name in _REGULARIZERS)
    return _read_conv(
        section,
        path,
        regularizer=_read_regularizer(regularizer, f"{path}.regularizer") if has_penalty else None,
        initializer=_read_initializer(section.child("initializer"), f"{path}.initializer"),
        batch_norm=_read_batch_norm(section, f"{path}.batch_norm"),
        regularize_depthwise=depthwise or not (keras or section.has("regularize_depthwise")),
    )


def of_a_replica(conv: schema.ConvHyperparams) -> schema.ConvHyperparams:
    """Returns hyperparameters with batch norm over one replica's images, as in the original."""
    if conv.batch_norm is None:
        return conv
    norm = dataclasses.replace(conv.batch_norm, statistics="per_replica")
    return dataclasses.replace(conv, batch_norm=norm)


def overridden(
    section: MessageSection, base: schema.ConvHyperparams, *, keras: bool
) -> schema.ConvHyperparams:
    """Returns the hyperparameters of a base network that the config overrides."""
    given = read_hyperparams(section.child("conv_hyperparams"), "model.backbone.conv", keras=keras)
    # Without batch_norm in the config the second generation has none. A base of the first keeps
    # its own: its scope is opened first.
    norm = given.batch_norm if keras else given.batch_norm or base.batch_norm
    return dataclasses.replace(given, batch_norm=norm)


def _read_batch_norm(section: MessageSection, path: str) -> schema.BatchNorm | None:
    for name, statistics in _NORMS.items():
        if section.has(name):
            section.log.origins[f"{path}.statistics"] = section.where(name)
            return field_mapping(schema.BatchNorm, "decay epsilon center scale train")(
                section.child(name), path, statistics=statistics
            )
    return None


# Of the maps behind so many taps.
_EXTRA_DEPTHS = {2: (512, 256, 256, 128), 3: (512, 256, 128)}
# Layers of a backbone that plain SSD and the pooling pyramid read.
_SSD_TAPS: dict[type, tuple[str, ...]] = {
    schema.MobileNetV1: ("conv_11_pointwise", "conv_13_pointwise"),
    schema.MobileNetV2: ("block_13_expand", "conv_1"),
    schema.InceptionV2: ("mixed_4c", "mixed_5c"),
    schema.InceptionV3: ("mixed_5d", "mixed_6e", "mixed_7c"),
    schema.MobileNetV3Large: ("block_12_expand", "conv_1"),
    schema.MobileNetV3Small: ("block_8_expand", "conv_1"),
    schema.MobileNetEdgeTpu: ("block_16_expand", "block_21"),
    schema.MobileDetCpu: ("block_13", "block_18"),
    **dict.fromkeys(
        (schema.MobileDetGpu, schema.MobileDetDsp, schema.MobileDetEdgeTpu),
        ("block_16", "block_21"),
    ),
}
# Of `embedded_ssd_mobilenet_v1`: the last map has 2x2 pixels.
_EMBEDDED: dict[str, Any] = {"extra_depths": (512, 256, 256), "extra_kernel_sizes": (3, 3, 2)}
_PPN_TAPS = {
    schema.MobileNetV1: "conv_11_pointwise",
    schema.MobileNetV2: "block_13_expand",
    schema.ResNetV1: "block_3",
}
_RESNET_PPN_DEPTH = 1024
_read_ssd_layers = field_mapping(
    schema.SsdExtraLayers,
    "depth_multiplier min_depth",
    depthwise="use_depthwise",
    explicit_padding="use_explicit_padding",
)


def _read_extra_layers(
    section: MessageSection, backbone: schema.Backbone, conv: schema.ConvHyperparams
) -> schema.SsdExtraLayers:
    # num_layers cuts the list of feature maps off: first the extra ones, then the taps.
    taps = _SSD_TAPS[type(backbone)]
    extra_depths = _EXTRA_DEPTHS[len(taps)]
    layers = section.value("num_layers", "model.neck.extra_depths")
    if not 1 <= layers <= len(taps) + len(extra_depths):
        problem = f"SsdFeatureExtractor.num_layers = {layers} is out of range"
        fix = f"this extractor has 1 to {len(taps) + len(extra_depths)} feature maps"
        raise UserError(problem, where=section.where("num_layers"), fix=fix)
    return _read_ssd_layers(
        section,
        "model.neck",
        taps=taps[:layers],
        extra_depths=extra_depths[: max(0, layers - len(taps))],
        conv=conv,
    )


def _read_embedded(
    section: MessageSection, backbone: schema.Backbone, conv: schema.ConvHyperparams
) -> schema.SsdExtraLayers:
    section.ignore("this extractor has five feature maps", "num_layers")
    return _read_ssd_layers(
        section, "model.neck", taps=_SSD_TAPS[type(backbone)], conv=conv, **_EMBEDDED
    )


def _read_ppn(
    section: MessageSection, backbone: schema.Backbone, conv: schema.ConvHyperparams
) -> schema.Ppn:
    if section.value("use_depthwise"):
        text = "use_depthwise has no effect on a pooling pyramid, which has no convolution"
        section.note("use_depthwise", text)
    depth = _RESNET_PPN_DEPTH if isinstance(backbone, schema.ResNetV1) else 0
    return schema.Ppn(tap=_PPN_TAPS[type(backbone)], depth=depth, conv=conv)


def _read_fpn(
    section: MessageSection, backbone: schema.Backbone, conv: schema.ConvHyperparams
) -> schema.Fpn:
    path = "model.neck"
    names = {"min_depth": "min_depth"}
    if isinstance(backbone, schema.ResNetV1):
        _check_resnet(section)
    else:
        names |= {"depth_multiplier": "depth_multiplier", "depthwise": "use_depthwise"}
        names["explicit_padding"] = "use_explicit_padding"
    levels = section.child("fpn").read_fields(
        path, "min_level", "max_level", depth="additional_layer_depth"
    )
    return schema.Fpn(conv=conv, top_down="sum", **levels, **section.read_fields(path, **names))


# Channels of the first layers of a ResNet.
_RESNET_STEM = 64


def _check_resnet(section: MessageSection) -> None:
    if section.get("min_depth") > _RESNET_STEM:
        why = f"the original then widens the first layers of the ResNet, which have {_RESNET_STEM}"
        section.refuse("min_depth", why, f"set it to at most {_RESNET_STEM}")
    section.ignore("the original's pyramid on a ResNet has full kernels", "use_depthwise")


NECKS: dict[
    str, Callable[[MessageSection, schema.Backbone, schema.ConvHyperparams], schema.Neck]
] = {"": _read_extra_layers, "embedded": _read_embedded, "ppn": _read_ppn, "fpn": _read_fpn}
"""Readers by the word in the type of a feature extractor."""


_KEEP_ASPECT_RATIO = "keep_aspect_ratio_resizer"
_WITHOUT_SHAPE = ("identity_resizer", "conditional_shape_resizer", "pad_to_multiple_resizer")
_read_conditional = field_mapping(
    schema.ConditionalShapeResizer, "condition", method="resize_method", threshold="size_threshold"
)


def read_resizer(section: MessageSection, path: str) -> schema.Resizer:
    """Reads `image_resizer`.

    The resizers without a fixed shape leave their `canvas` empty, which a rule refuses.
    """
    resizer: schema.Resizer = _read(section, path)
    for name in filter(section.has, _WITHOUT_SHAPE):
        section.log.origins[f"{path}.canvas"] = section.where(name)
    return resizer


def resizer_without_shape(section: MessageSection) -> MessageSection | None:
    """Returns the resizer in an `image_resizer` if its results have many shapes in the original."""
    for name in (_KEEP_ASPECT_RATIO, *_WITHOUT_SHAPE):
        resizer = section.child(name)
        padded = name == _KEEP_ASPECT_RATIO and resizer.value("pad_to_max_dimension")
        if section.has(name) and not padded:
            return resizer
    return None


def _conditional_shape(section: MessageSection, path: str) -> schema.ConditionalShapeResizer:
    if section.get("condition") == "invalid":
        problem = "ConditionalShapeResizer.condition = INVALID is not supported"
        raise UserError(problem, where=section.where("condition"), fix="there is: GREATER, SMALLER")
    return _read_conditional(section, path)


_read = choice(
    "image_resizer_oneof",
    {
        "fixed_shape_resizer": field_mapping(
            schema.FixedShapeResizer, "height width", method="resize_method"
        ),
        _KEEP_ASPECT_RATIO: field_mapping(
            schema.KeepAspectRatioResizer,
            "min_dimension max_dimension",
            "pad_value",
            method="resize_method",
            pad_value="per_channel_pad_value",
        ),
        "identity_resizer": field_mapping(schema.IdentityResizer),
        "conditional_shape_resizer": _conditional_shape,
        "pad_to_multiple_resizer": field_mapping(schema.PadToMultipleResizer, "multiple"),
    },
)
