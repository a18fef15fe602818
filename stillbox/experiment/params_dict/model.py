"""The detector of a dictionary: backbone, neck, head, anchors, losses, post-processing."""

import json
import math
from dataclasses import replace
from typing import Any

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.params_dict.keys import BACKBONES, NECKS
from stillbox.experiment.params_dict.section import (
    GLOROT_UNIFORM,
    VARIANCE_SCALING,
    KeySection,
    note_statistics,
    read_conv,
    read_drop_block,
)
from stillbox.experiment.params_dict.training import PIXELS, read_resizer

_BACKBONE = "model.backbone"
_STEM = "architecture.space_to_depth_block_size"
# What 2020 gave explicitly: field -> key.
_SIZES = {
    "endpoints_depth": "endpoints_num_filters",
    "filter_scale": "filter_size_scale",
    "resample_alpha": "resample_alpha",
    "repeats": "block_repeats",
}
_KINDS = ("residual", "bottleneck")


def read_backbone(root: KeySection) -> schema.Backbone:
    """Reads the backbone that the dictionary chooses."""
    kind = root.choose("architecture.backbone", BACKBONES, f"{_BACKBONE}.kind")
    section = root.child(kind)
    common: dict[str, Any] = {
        "drop_connect_rate": section.value(
            "init_drop_connect_rate", f"{_BACKBONE}.drop_connect_rate"
        )
        or 0.0,
        "conv": read_conv(root, kind, _BACKBONE, initializer=VARIANCE_SCALING),
    }
    if kind == "resnet":
        return _read_resnet(root, common)
    common |= root.child("architecture").read_fields(_BACKBONE, "min_level", "max_level")
    if kind == "spinenet":
        return _read_spinenet(section, common)
    fields = [f"{_BACKBONE}.{name}" for name in ("endpoints_depth", "filter_scale")]
    size = schema.SPINENET_MBCONV_SIZES[
        section.choose("model_id", schema.SPINENET_MBCONV_SIZES, *fields)
    ]
    return replace(size, **section.read_fields(_BACKBONE, "se_ratio"), **common)


def _read_resnet(root: KeySection, common: dict[str, Any]) -> schema.ResNet:
    block = root.value(_STEM, f"{_BACKBONE}.space_to_depth_stem")
    if block not in (1, 2):
        root.refuse(_STEM, "the stem is computed over blocks of 2 pixels, or of 1", f"{_STEM}=2")
    return schema.ResNet(
        space_to_depth_stem=block == 2,
        project_first_block=True,
        zero_last_scale=False,
        drop_block=read_drop_block(root, "resnet", f"{_BACKBONE}.drop_block"),
        **root.read_fields(_BACKBONE, depth="resnet.resnet_depth"),
        **common,
    )


def _read_spinenet(section: KeySection, common: dict[str, Any]) -> schema.Backbone:
    """Reads a member of the family by its name, and the numbers that 2020 gave explicitly."""
    fields = [f"{_BACKBONE}.{name}" for name in _SIZES]
    size = schema.SPINENET_SIZES[section.choose("model_id", schema.SPINENET_SIZES, *fields)]
    old = section.read_fields(_BACKBONE, blocks="block_specs", **_SIZES)
    given = {name: value for name, value in old.items() if value is not None}
    if "blocks" in given:
        given["blocks"] = _read_blocks(section, given["blocks"])
    return replace(size, **given, **common)


def _read_blocks(section: KeySection, text: str) -> tuple[schema.SpineBlock, ...]:
    """Reads a JSON list of blocks: level, kind, inputs, is output."""
    try:
        blocks = tuple(
            schema.SpineBlock(level=level, block=kind, inputs=tuple(inputs), output=output)
            for level, kind, inputs, output in json.loads(text)
        )
        sound = all(_is_block(block) for block in blocks)
    except (ValueError, TypeError, RecursionError):
        sound = False
    if not sound:
        problem = "spinenet.block_specs is no list of blocks in JSON"
        fix = f"[[level, kind, [input, input], is_output], ...], kind {' or '.join(_KINDS)}"
        raise UserError(problem, where=section.where("block_specs"), fix=fix)
    return blocks


def _is_block(block: schema.SpineBlock) -> bool:
    return (
        all(type(number) is int for number in (block.level, *block.inputs))
        and len(block.inputs) == 2
        and block.block in _KINDS
        and isinstance(block.output, bool)
    )


_CHOICE, _NECK, _HEAD = "architecture.multilevel_features", "model.neck", "model.head"


def read_neck(root: KeySection) -> schema.Neck:
    """Reads the neck that the dictionary chooses."""
    kind = root.choose(_CHOICE, (*NECKS, "identity"), f"{_NECK}.kind")
    backbone = root.get("architecture.backbone")
    if backbone != "resnet" and kind != "identity":
        root.refuse(_CHOICE, f"{backbone} makes all levels itself", f"{_CHOICE}=identity")
    levels = root.child("architecture").read_fields(_NECK, "min_level", "max_level")
    if kind == "identity":
        return schema.Identity(**levels)
    return _read_fpn(root, levels) if kind == "fpn" else _read_nas_fpn(root, levels)


def _read_fpn(root: KeySection, levels: dict[str, Any]) -> schema.RetinaNetFpn:
    norm = root.value("fpn.use_batch_norm", f"{_NECK}.conv.batch_norm")
    conv = read_conv(root, "fpn", _NECK, initializer=GLOROT_UNIFORM, biased=True, norm=norm)
    return schema.RetinaNetFpn(
        # Between the two coarsest levels stands a ReLU, whatever the other activations are.
        conv=replace(conv, activation="relu"),
        **levels,
        **root.child("fpn").read_fields(
            _NECK, depth="fpn_feat_dims", depthwise="use_separable_conv"
        ),
    )


def _read_nas_fpn(root: KeySection, levels: dict[str, Any]) -> schema.NasFpn:
    section = root.child("nasfpn")
    block = section.choose("block_fn", ("conv", "bottleneck"), f"{_NECK}.block")
    rate, inner = 0.0, None
    if block == "bottleneck":
        rate = section.value("init_drop_connect_rate", f"{_NECK}.drop_connect_rate") or 0.0
        # SpineNet has the blocks of ResNet, down to their initialiser.
        inner = read_conv(root, "nasfpn", _NECK, initializer=VARIANCE_SCALING)
    return schema.NasFpn(
        block=block,
        drop_connect_rate=rate,
        drop_block=read_drop_block(root, "nasfpn", f"{_NECK}.drop_block"),
        conv=read_conv(root, "nasfpn", _NECK, initializer=GLOROT_UNIFORM, biased=True),
        block_conv=inner,
        **levels,
        **section.read_fields(
            _NECK,
            "num_repeats",
            depth="fpn_feat_dims",
            depthwise="use_separable_conv",
            sum_only="use_sum_for_combination",
        ),
    )


def read_head(root: KeySection) -> schema.WeightSharedHead:
    """Reads the head. Every score starts at 0.01."""
    section = root.child("retinanet_head")
    separable = section.value("use_separable_conv", f"{_HEAD}.depthwise")
    norm = section.value("use_batch_norm", f"{_HEAD}.conv.batch_norm")
    # Separable convolutions keep TensorFlow's initialiser in all layers.
    initializer = GLOROT_UNIFORM if separable else schema.RandomNormal(stddev=0.01)
    return schema.WeightSharedHead(
        depthwise=separable,
        kernel_size=3,
        class_bias_init=-math.log(99),
        predictor_initializer=None if separable else schema.RandomNormal(stddev=1e-5),
        conv=read_conv(
            root, "retinanet_head", _HEAD, initializer=initializer, biased=True, norm=norm
        ),
        **section.read_fields(_HEAD, depth="num_filters", layers_before="num_convs"),
    )


BOX_CODER = schema.FasterRcnnBoxCoder(
    y_scale=1.0, x_scale=1.0, height_scale=1.0, width_scale=1.0, max_log_ratio=math.log(1000 / 16)
)
"""Codes without scales, decoded exactly as they are encoded. The original decodes with other edges:
`inclusive_edges: decode`."""
_NMS = "model.postprocessing.nms"


def read_anchors(root: KeySection) -> schema.MultiscaleAnchors:
    """Reads `anchor`."""
    path = "model.anchors"
    anchors = schema.MultiscaleAnchors(
        order="scale_major",
        **root.child("architecture").read_fields(path, "min_level", "max_level"),
        **root.child("anchor").read_fields(
            path, "aspect_ratios", anchor_scale="anchor_size", scales_per_octave="num_scales"
        ),
    )
    count = anchors.scales_per_octave * len(anchors.aspect_ratios)
    # The last version no longer reads this key, so that its value must agree.
    given = root.value("retinanet_head.anchors_per_location")
    if given not in (None, count):
        why = f"anchor.num_scales and anchor.aspect_ratios make {count} at a location"
        root.refuse("retinanet_head.anchors_per_location", why, "take it out")
    return anchors


def read_matcher(root: KeySection) -> schema.ArgmaxMatcher:
    """Reads the thresholds; every box has its best anchor, whatever they are."""
    return schema.ArgmaxMatcher(
        force_match_for_each_row=True,
        **root.child("retinanet_parser").read_fields(
            "model.matcher", "unmatched_threshold", matched_threshold="match_threshold"
        ),
    )


def read_loss(root: KeySection) -> schema.Loss:
    """Reads `retinanet_loss`: both sums, divided by the matches of a replica's images plus one.

    A moving average of the matches is one number in the schema, and thus of the whole batch.
    """
    section, path = root.child("retinanet_loss"), "model.loss"
    focal = section.read_fields(
        f"{path}.classification", alpha="focal_loss_alpha", gamma="focal_loss_gamma"
    )
    return schema.Loss(
        normalizer="global" if section.get("normalizer_momentum") else "per_replica",
        classification=schema.SigmoidFocalLoss(**focal),
        localization=schema.SmoothL1Loss(
            **section.read_fields(f"{path}.localization", delta="huber_loss_delta")
        ),
        normalize_by_matches=True,
        normalize_localization_by_code_size=True,
        encode_background_as_zeros=True,
        added_matches=1.0,
        **section.read_fields(path, "normalizer_momentum", localization_weight="box_loss_weight"),
    )


def read_postprocessing(root: KeySection) -> schema.Postprocessing:
    """Reads `postprocess`."""
    section, most = root.child("postprocess"), f"{_NMS}.max_candidates_per_class"
    versions = ("v1", "v2", "batched")
    version = section.choose("nms_version", versions, f"{_NMS}.drop_at_threshold", most)
    if section.value("use_batched_nms", most):
        version = "batched"
        section.warn(
            "use_batched_nms",
            "postprocess.use_batched_nms is deprecated; today's is "
            "postprocess.nms_version = batched",
        )
    if not section.value("apply_nms"):
        section.refuse(
            "apply_nms", "detections are the result of non-maximum suppression", "leave it at true"
        )
    sigmoid = section.value("apply_sigmoid", "model.postprocessing.score_converter")
    # The batched operation compares all boxes, and keeps one that overlaps by the threshold itself.
    limits: dict[str, Any] = {}
    if version != "batched":
        limits = section.read_fields(_NMS, max_candidates_per_class="pre_nms_num_boxes")
    return schema.Postprocessing(
        score_converter="sigmoid" if sigmoid else "identity",
        nms=schema.Nms(
            drop_at_threshold=version != "batched",
            clip_first=True,
            **limits,
            **section.read_fields(
                _NMS,
                "score_threshold",
                max_total="max_total_size",
                max_per_class="max_total_size",
                iou_threshold="nms_iou_threshold",
            ),
        ),
    )


def read_model(root: KeySection) -> schema.OneStage:
    """Reads everything between pixels and boxes."""
    classes = root.value("architecture.num_classes", "model.num_classes")
    if classes < 2:
        why = "the background is one of them, and nothing is left to detect"
        root.refuse("architecture.num_classes", why, "one more than the classes of the label map")
    model = schema.OneStage(
        # The original counts the background; here it has a logit of its own.
        num_classes=classes - 1,
        background_class=True,
        class_slots="label_map_id",
        resizer=read_resizer(root),
        pixels=PIXELS,
        backbone=read_backbone(root),
        neck=read_neck(root),
        head=read_head(root),
        anchors=read_anchors(root),
        box_coder=BOX_CODER,
        matcher=read_matcher(root),
        loss=read_loss(root),
        postprocessing=read_postprocessing(root),
    )
    note_statistics(root)
    return model
