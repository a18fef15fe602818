"""`task.model` and `task.losses`: backbone, decoder, head, anchors, losses, detections."""

import math
from dataclasses import replace
from typing import Any

from stillbox.experiment import schema
from stillbox.experiment.model_garden.section import (
    MODEL,
    GardenSection,
    frozen_norm,
    read_conv,
    separable,
)
from stillbox.experiment.params_dict.model import BOX_CODER
from stillbox.experiment.params_dict.section import GLOROT_UNIFORM, VARIANCE_SCALING
from stillbox.experiment.params_dict.training import PIXELS
from stillbox.experiment.schema.searched_backbones import SPINENET_MBCONV_SIZES, SPINENET_SIZES

_BACKBONE, _NECK, _HEAD, _NMS = (
    "model.backbone",
    "model.neck",
    "model.head",
    "model.postprocessing.nms",
)
_BACKBONES = ("resnet", "spinenet", "spinenet_mobile")
_DEPTHS = (10, 18, 34, 50, 101, 152, 200)
# Other blocks of ResNet-RS.
_PLAIN = {
    "depth_multiplier": 1.0,
    "stem_type": "v0",
    "se_ratio": 0.0,
    "resnetd_shortcut": False,
    "replace_stem_max_pool": False,
}
# The original has another block, of level 2, that no detector reads.
_UNREAD_BLOCK = 15 / 16


def read_model(root: GardenSection) -> schema.OneStage:
    """Reads everything between pixels and boxes."""
    section = root.child(MODEL)
    classes = section.value("num_classes", "model.num_classes")
    if classes < 2:
        section.refuse(
            "num_classes",
            "the background is one of them, and nothing is left to detect",
            "one more than the classes of the label map, such as 91",
        )
    return schema.OneStage(
        num_classes=classes - 1,
        background_class=True,
        class_slots="label_map_id",
        resizer=_read_resizer(root),
        pixels=PIXELS,
        backbone=_read_backbone(root),
        neck=_read_decoder(root),
        head=_read_head(root),
        anchors=_read_anchors(section),
        box_coder=_read_coder(section),
        matcher=schema.ArgmaxMatcher(
            force_match_for_each_row=True,
            **root.child("task.train_data.parser").read_fields(
                "model.matcher", "unmatched_threshold", matched_threshold="match_threshold"
            ),
        ),
        loss=_read_loss(root),
        postprocessing=_read_generator(section.child("detection_generator")),
    )


def _read_resizer(root: GardenSection) -> schema.ScaleJitterResizer:
    name = f"{MODEL}.input_size"
    size = root.value(name, "model.resizer.height", "model.resizer.width")
    if len(size) not in (2, 3) or size[2:] not in ((), (3,)):
        root.refuse(name, "it is a height, a width and 3 channels", f"{name}=[640, 640, 3]")
    top = root.value(f"{MODEL}.max_level", "model.resizer.multiple")
    pads = [root.value(f"task.{data}.parser.pad") for data in ("train_data", "validation_data")]
    # A rule refuses levels that no image has; here they must only be numbers.
    multiple = 2 ** min(max(top, 0), 30) if all(pads) else 1
    return schema.ScaleJitterResizer(
        height=size[0],
        width=size[1],
        multiple=multiple,
        pad_value=PIXELS.mean,
        **root.child("task.train_data.parser").read_fields(
            "model.resizer", min_scale="aug_scale_min", max_scale="aug_scale_max"
        ),
    )


def _read_backbone(root: GardenSection) -> schema.Backbone:
    section = root.child(f"{MODEL}.backbone")
    kind = section.choose("type", _BACKBONES, f"{_BACKBONE}.kind")
    conv = read_conv(root, _BACKBONE)
    frozen = root.value("task.freeze_backbone", f"{_BACKBONE}.conv.batch_norm.train")
    own = section.child(kind)
    if kind == "resnet":
        frozen |= not own.value("bn_trainable", f"{_BACKBONE}.conv.batch_norm.train")
    common: dict[str, Any] = {
        "conv": frozen_norm(conv) if frozen else conv,
        "explicit_padding": False,
        "drop_connect_rate": own.value(
            "stochastic_depth_drop_rate", f"{_BACKBONE}.drop_connect_rate"
        ),
    }
    if kind == "resnet":
        return _read_resnet(own, common)
    common |= _read_levels(root, own)
    if kind == "spinenet":
        return _read_spinenet(root, own, common)
    return _read_mobile(own, common)


def _read_resnet(section: GardenSection, common: dict[str, Any]) -> schema.ResNet:
    for name, plain in _PLAIN.items():
        if section.value(name) != plain:
            section.refuse(name, "the blocks of ResNet-RS are not supported", f"{name}={plain}")
    # It is a factor of depth_multiplier, which is 1.
    section.value("scale_stem")
    depth = section.choose("model_id", _DEPTHS, f"{_BACKBONE}.depth")
    return schema.ResNet(depth=depth, project_first_block=True, zero_last_scale=False, **common)


def _read_levels(root: GardenSection, section: GardenSection) -> dict[str, int]:
    """Returns the levels of the model, which the backbone's own have to equal."""
    model = root.child(MODEL)
    for name in ("min_level", "max_level"):
        if section.value(name) != model.value(name):
            section.refuse(
                name,
                f"{MODEL}.{name} is {model.get(name)}, and both must agree",
                f"{section.label(name)}={model.get(name)}",
            )
    return model.read_fields(_BACKBONE, "min_level", "max_level")


def _read_spinenet(
    root: GardenSection, section: GardenSection, common: dict[str, Any]
) -> schema.SpineNet:
    name = f"{MODEL}.norm_activation.activation"
    root.choose(name, ("relu", "swish"))
    if common["max_level"] < 7 or common["min_level"] < 3:
        section.refuse("max_level", "the network has levels 3 to 7", "min_level=3, max_level=7")
    sizes = {name.upper(): size for name, size in SPINENET_SIZES.items()}
    fields = ("endpoints_depth", "filter_scale", "resample_alpha", "repeats")
    model = section.choose("model_id", sizes, *(f"{_BACKBONE}.{field}" for field in fields))
    rate = common.pop("drop_connect_rate") * _UNREAD_BLOCK
    return replace(sizes[model], drop_connect_rate=rate, **common)


def _read_mobile(section: GardenSection, common: dict[str, Any]) -> schema.SpineNetMbConv:
    if section.value("expand_ratio") != 6:
        section.refuse("expand_ratio", "blocks are six times as wide inside", "expand_ratio=6")
    fields = [f"{_BACKBONE}.{name}" for name in ("endpoints_depth", "filter_scale")]
    size = SPINENET_MBCONV_SIZES[section.choose("model_id", SPINENET_MBCONV_SIZES, *fields)]
    return replace(
        size,
        gate="hard_sigmoid",
        gate_activation="relu",
        rounded_channels=False,
        block_depthwise_initializer=VARIANCE_SCALING,
        **section.read_fields(_BACKBONE, "se_ratio"),
        **common,
    )


def _read_decoder(root: GardenSection) -> schema.Neck:
    section = root.child(f"{MODEL}.decoder")
    kind = section.choose("type", ("fpn", "identity"), f"{_NECK}.kind")
    backbone = root.get(f"{MODEL}.backbone.type")
    if (backbone == "resnet") != (kind == "fpn"):
        section.refuse(
            "type",
            f"the backbone is {backbone}",
            "fpn is for resnet, identity for the other backbones, which are pyramids",
        )
    levels = root.child(MODEL).read_fields(_NECK, "min_level", "max_level")
    if kind == "identity":
        return schema.Identity(**levels)
    fpn = section.child("fpn")
    fpn.choose("fusion_type", ("sum",), reasons={"concat": "levels are added"})
    conv = read_conv(root, _NECK, biased=True)
    fields = fpn.read_fields(_NECK, depth="num_filters", depthwise="use_separable_conv")
    if fields["depthwise"]:
        conv = separable(conv)
    return schema.RetinaNetFpn(conv=conv, **fields, **levels)


def _read_head(root: GardenSection) -> schema.WeightSharedHead:
    section = root.child(f"{MODEL}.head")
    fields = section.read_fields(
        _HEAD, depth="num_filters", layers_before="num_convs", depthwise="use_separable_conv"
    )
    conv = read_conv(root, _HEAD, initializer=schema.RandomNormal(stddev=0.01), biased=True)
    first: schema.Initializer = schema.RandomNormal(stddev=1e-5)
    if fields["depthwise"]:
        conv, first = separable(conv), GLOROT_UNIFORM
    return schema.WeightSharedHead(
        conv=conv,
        kernel_size=3,
        class_bias_init=-math.log(99),
        predictor_initializer=first,
        **fields,
    )


def _read_anchors(section: GardenSection) -> schema.MultiscaleAnchors:
    path = "model.anchors"
    return schema.MultiscaleAnchors(
        order="scale_major",
        **section.read_fields(path, "min_level", "max_level"),
        **section.child("anchor").read_fields(
            path, "aspect_ratios", anchor_scale="anchor_size", scales_per_octave="num_scales"
        ),
    )


_SCALES = ("y_scale", "x_scale", "height_scale", "width_scale")


def _read_coder(section: GardenSection) -> schema.FasterRcnnBoxCoder:
    name = "detection_generator.box_coder_weights"
    paths = [f"model.box_coder.{scale}" for scale in _SCALES]
    weights = section.value(name, *paths)
    if not weights:
        return BOX_CODER
    if len(weights) != len(_SCALES):
        section.refuse(name, "there are four: y, x, height and width", "[10.0, 10.0, 5.0, 5.0]")
    return replace(BOX_CODER, **dict(zip(_SCALES, weights, strict=True)))


def _read_loss(root: GardenSection) -> schema.Loss:
    """Reads `losses`: both sums, divided by the matches of a replica's images plus one."""
    section, path = root.child("task.losses"), "model.loss"
    whole = section.value("loss_weight", f"{path}.classification_weight")
    boxes = section.value("box_loss_weight", f"{path}.localization_weight")
    return schema.Loss(
        normalizer="per_replica",
        classification=schema.SigmoidFocalLoss(
            **section.read_fields(
                f"{path}.classification", alpha="focal_loss_alpha", gamma="focal_loss_gamma"
            )
        ),
        localization=schema.SmoothL1Loss(
            **section.read_fields(f"{path}.localization", delta="huber_loss_delta")
        ),
        classification_weight=whole,
        localization_weight=whole * boxes,
        normalize_by_matches=True,
        normalize_localization_by_code_size=True,
        encode_background_as_zeros=True,
        added_matches=1.0,
    )


def _read_generator(section: GardenSection) -> schema.Postprocessing:
    """Reads `detection_generator`."""
    version = section.choose(
        "nms_version",
        ("v1", "v2", "batched"),
        f"{_NMS}.drop_at_threshold",
        f"{_NMS}.max_candidates_per_class",
    )
    agnostic = section.value("use_class_agnostic_nms", f"{_NMS}.class_agnostic") or False
    if agnostic and version != "v2":
        section.refuse("use_class_agnostic_nms", "it needs nms_version v2", "nms_version: v2")
    # The batched operation compares all boxes, and keeps one that overlaps by the threshold itself.
    limits: dict[str, Any] = {}
    if version != "batched":
        limits = section.read_fields(_NMS, max_candidates_per_class="pre_nms_top_k")
    if version == "v1" and section.value("soft_nms_sigma"):
        limits["soft_sigma"] = section.value("soft_nms_sigma", f"{_NMS}.soft_sigma")
    return schema.Postprocessing(
        score_converter="sigmoid",
        nms=schema.Nms(
            drop_at_threshold=version != "batched",
            class_agnostic=agnostic,
            clip_first=True,
            clip_to="input",
            **limits,
            **section.read_fields(
                _NMS,
                score_threshold="pre_nms_score_threshold",
                max_total="max_num_detections",
                max_per_class="max_num_detections",
                iou_threshold="nms_iou_threshold",
            ),
        ),
    )
