"""`FasterRcnnFeatureExtractor`: backbone, neck and box head in one message."""

import dataclasses
import re
from typing import Any, Literal, NamedTuple

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.extractors import (
    RESNET_PIXELS,
    read_keras_resnet,
    read_type,
)
from stillbox.experiment.pipeline_config.layers import of_a_replica, read_hyperparams
from stillbox.experiment.pipeline_config.section import MessageSection

_RESNETS = tuple(f"faster_rcnn_resnet{depth}" for depth in (50, 101, 152))
EXTRACTORS = (
    *_RESNETS,
    "faster_rcnn_inception_v2",
    "faster_rcnn_inception_resnet_v2",
    "faster_rcnn_inception_resnet_v2_keras",
    *(f"{resnet}_keras" for resnet in _RESNETS),
    *(f"{resnet}_fpn_keras" for resnet in _RESNETS),
)
"""Supported values of `feature_extractor.type`."""
_NAS = "networks found by architecture search (NASNet, PNASNet) are not supported"
_REFUSED = {
    "faster_rcnn_nas": _NAS,
    "faster_rcnn_pnas": _NAS,
    "faster_rcnn_mobilenet_v1": "MobileNet v1 is supported in SSD alone",
}
_PLAIN = "the original reads it for the FPN extractors alone"
_STRIDE = "first_stage_features_stride"
_USUAL_STRIDE = 16

GLOROT = schema.VarianceScaling(factor=1.0, uniform=True, mode="fan_avg")
"""Glorot's initialiser, the default of the original's layers."""


class Extractor(NamedTuple):
    """The parts that one `feature_extractor` describes."""

    backbone: schema.Backbone
    neck: schema.Neck
    head: schema.BoxHead
    keras: bool
    """It is one of the original's second generation."""
    pixels: schema.PixelNormalization = RESNET_PIXELS


def read_extractor(section: MessageSection) -> Extractor:
    """Reads `feature_extractor`."""
    kind = read_type(section, EXTRACTORS, _REFUSED)
    section.ignore("no extractor of the original takes it", "pad_to_multiple")
    if kind.endswith("_fpn_keras"):
        return _read_fpn(section, _depth_in(kind))
    overrides = "override_base_feature_extractor_hyperparams"
    section.ignore(_PLAIN, "conv_hyperparams", overrides, "fpn")
    if "inception_resnet" in kind:
        return _read_inception_resnet(section, keras=kind.endswith("_keras"))
    if "inception" in kind:
        return _read_inception(section)
    return _read_resnet(section, _depth_in(kind), keras=kind.endswith("_keras"))


def _depth_in(kind: str) -> int:
    match = re.search(r"resnet(\d+)", kind)
    assert match is not None  # it is one of EXTRACTORS
    return int(match[1])


def _read_resnet(section: MessageSection, depth: int, *, keras: bool) -> Extractor:
    if keras:
        _check_stride(section, _USUAL_STRIDE)
        backbone = _unpenalised(read_keras_resnet(section, depth))
    else:
        # The original builds the whole network in the first stage, and its checkpoints contain it.
        stride = _check_stride(section, 8, _USUAL_STRIDE, paths=("model.backbone.output_stride",))
        backbone = _unpenalised(
            schema.ResNetV1(
                depth=depth,
                output_stride=stride,
                stride_in_unit=True,
                last_layer="block_4",
                conv=of_a_replica(schema.ResNetV1().conv),
            )
        )
    level = next(level for level, layer in backbone.levels.items() if layer == "block_3")
    return Extractor(
        backbone=backbone,
        neck=schema.Identity(min_level=level, max_level=level),
        head=schema.ResNetBlockHead(stride=2 if keras else 1, conv=backbone.conv),
        keras=keras,
    )


def _read_inception(section: MessageSection) -> Extractor:
    _note_stride(section, "Inception v2 has a stride of 16 whatever is set, as in the original")
    conv = dataclasses.replace(of_a_replica(schema.InceptionV2().conv), regularizer=None)
    return Extractor(
        backbone=schema.InceptionV2(conv=conv),
        neck=schema.Identity(min_level=4, max_level=4),
        head=schema.InceptionV2BlockHead(conv=conv),
        keras=False,
        pixels=schema.PixelNormalization(),
    )


def _read_inception_resnet(section: MessageSection, *, keras: bool) -> Extractor:
    # At a stride of 8, the second stage of the original's second generation joins maps of two
    # sizes, and fails.
    strides = (_USUAL_STRIDE,) if keras else (8, _USUAL_STRIDE)
    stride = _check_stride(section, *strides, paths=("model.backbone.output_stride",))
    base = of_a_replica(schema.InceptionResNetV2().conv)
    conv = dataclasses.replace(base, regularizer=None, regularize_bias=False)
    level = stride.bit_length() - 1
    return Extractor(
        backbone=schema.InceptionResNetV2(output_stride=stride, conv=conv),
        neck=schema.Identity(min_level=level, max_level=level),
        head=schema.InceptionResNetV2BlockHead(padding="same" if keras else "valid", conv=conv),
        keras=keras,
        pixels=schema.PixelNormalization(),
    )


def _read_fpn(section: MessageSection, depth: int) -> Extractor:
    _note_stride(section, "the levels of the pyramid decide")
    name = "conv_hyperparams"
    if not section.has(name):
        raise UserError(
            "the feature extractor has no conv_hyperparams, which its pyramid is built from",
            where=section.where(),
            fix="add conv_hyperparams { ... }",
        )
    conv = read_hyperparams(section.child(name), "model.neck.conv", keras=True)
    # What the message leaves out has other defaults than a message that is left out.
    levels: dict[str, Any] = {"min_level": 2, "max_level": 6}
    if section.has("fpn"):
        levels = section.child("fpn").read_fields(
            "model.neck", "min_level", "max_level", depth="additional_layer_depth"
        )
    dense = schema.ConvHyperparams(initializer=GLOROT, batch_norm=conv.batch_norm)
    return Extractor(
        backbone=read_keras_resnet(section, depth),
        neck=schema.Fpn(conv=conv, top_down="smoothed", **levels),
        head=schema.FullyConnectedHead(conv=dense),
        keras=True,
    )


def _unpenalised(backbone: schema.ResNetV1) -> schema.ResNetV1:
    """Returns a backbone as Faster R-CNN builds it: with a weight decay of 0."""
    conv = dataclasses.replace(backbone.conv, regularizer=None)
    return dataclasses.replace(backbone, conv=conv)


def _check_stride(
    section: MessageSection, *valid: int, paths: tuple[str, ...] = ()
) -> Literal[8, 16]:
    stride: Literal[8, 16] = section.value(_STRIDE, *paths)
    if stride not in valid:
        there_is = " and ".join(map(str, valid))
        section.refuse(_STRIDE, "this extractor has no such stride", f"there is: {there_is}")
    return stride


def _note_stride(section: MessageSection, why: str) -> None:
    if section.value(_STRIDE) != _USUAL_STRIDE:
        section.note(_STRIDE, f"{section.label(_STRIDE)} has no effect here: {why}")
