"""The necks that a `SsdFeatureExtractor` describes: extra layers, pooling and feature pyramids."""

from collections.abc import Callable
from typing import Any

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import (
    Backbone,
    ConvHyperparams,
    Fpn,
    InceptionV2,
    InceptionV3,
    MobileDetCpu,
    MobileDetDsp,
    MobileDetEdgeTpu,
    MobileDetGpu,
    MobileNetEdgeTpu,
    MobileNetV1,
    MobileNetV2,
    MobileNetV3Large,
    MobileNetV3Small,
    Neck,
    Ppn,
    ResNetV1,
    SsdLayers,
)
from stillbox.experiment.sections import part

# Of the maps behind so many taps.
_EXTRA_DEPTHS = {2: (512, 256, 256, 128), 3: (512, 256, 128)}
# Layers of a backbone that plain SSD and the pooling pyramid read.
_SSD_TAPS: dict[type, tuple[str, ...]] = {
    MobileNetV1: ("conv_11_pointwise", "conv_13_pointwise"),
    MobileNetV2: ("block_13_expand", "conv_1"),
    InceptionV2: ("mixed_4c", "mixed_5c"),
    InceptionV3: ("mixed_5d", "mixed_6e", "mixed_7c"),
    MobileNetV3Large: ("block_12_expand", "conv_1"),
    MobileNetV3Small: ("block_8_expand", "conv_1"),
    MobileNetEdgeTpu: ("block_16_expand", "block_21"),
    MobileDetCpu: ("block_13", "block_18"),
    **dict.fromkeys((MobileDetGpu, MobileDetDsp, MobileDetEdgeTpu), ("block_16", "block_21")),
}
# Of `embedded_ssd_mobilenet_v1`: the last map has 2x2 pixels.
_EMBEDDED: dict[str, Any] = {"extra_depths": (512, 256, 256), "extra_kernel_sizes": (3, 3, 2)}
_PPN_TAPS = {
    MobileNetV1: "conv_11_pointwise",
    MobileNetV2: "block_13_expand",
    ResNetV1: "block_3",
}
_RESNET_PPN_DEPTH = 1024
_read_ssd_layers = part(
    SsdLayers, depthwise="use_depthwise", explicit_padding="use_explicit_padding"
)


def _read_extra_layers(
    section: MessageSection, backbone: Backbone, conv: ConvHyperparams
) -> SsdLayers:
    # num_layers cuts the list of feature maps off: first the extra ones, then the taps.
    taps = _SSD_TAPS[type(backbone)]
    extra_depths = _EXTRA_DEPTHS[len(taps)]
    layers = section.value("num_layers", "model.neck.extra_depths")
    if not 1 <= layers <= len(taps) + len(extra_depths):
        raise UserError(
            f"SsdFeatureExtractor.num_layers = {layers} is out of range",
            where=section.where("num_layers"),
            fix=f"this extractor has 1 to {len(taps) + len(extra_depths)} feature maps",
        )
    neck: SsdLayers = _read_ssd_layers(
        section,
        "model.neck",
        taps=taps[:layers],
        extra_depths=extra_depths[: max(0, layers - len(taps))],
        conv=conv,
    )
    return neck


def _read_embedded(section: MessageSection, backbone: Backbone, conv: ConvHyperparams) -> SsdLayers:
    section.ignore("this extractor has five feature maps", "num_layers")
    neck: SsdLayers = _read_ssd_layers(
        section, "model.neck", taps=_SSD_TAPS[type(backbone)], conv=conv, **_EMBEDDED
    )
    return neck


def _read_ppn(section: MessageSection, backbone: Backbone, conv: ConvHyperparams) -> Ppn:
    if section.value("use_depthwise"):
        section.note(
            "use_depthwise",
            "use_depthwise has no effect on a pooling pyramid, which has no convolution",
        )
    depth = _RESNET_PPN_DEPTH if isinstance(backbone, ResNetV1) else 0
    return Ppn(tap=_PPN_TAPS[type(backbone)], depth=depth, conv=conv)


def _read_fpn(section: MessageSection, backbone: Backbone, conv: ConvHyperparams) -> Fpn:
    path = "model.neck"
    names = {"depthwise": "use_depthwise"}
    if not isinstance(backbone, ResNetV1):
        names |= {"depth_multiplier": "depth_multiplier", "min_depth": "min_depth"}
        names["explicit_padding"] = "use_explicit_padding"
    levels = section.child("fpn").fill(
        path, "min_level", "max_level", depth="additional_layer_depth"
    )
    return Fpn(conv=conv, top_down="sum", **levels, **section.fill(path, **names))


NECKS: dict[str, Callable[[MessageSection, Backbone, ConvHyperparams], Neck]] = {
    "": _read_extra_layers,
    "embedded": _read_embedded,
    "ppn": _read_ppn,
    "fpn": _read_fpn,
}
"""Readers by the word in the type of a feature extractor."""
