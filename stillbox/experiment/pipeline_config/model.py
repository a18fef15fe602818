"""`DetectionModel`: an SSD with the feature extractors that stillbox has."""

import dataclasses
from typing import Any

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.layers import SLIM_MOBILENET_V1, read_hyperparams
from stillbox.experiment.pipeline_config.losses import read_loss
from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    ArgmaxMatcher,
    ConvolutionalHead,
    FasterRcnnBoxCoder,
    FixedShapeResizer,
    KeepAspectRatioResizer,
    MobileNetV1,
    Model,
    Nms,
    Postprocessing,
    Resizer,
    SsdAnchors,
    SsdLayers,
)

EXTRACTORS = ("ssd_mobilenet_v1",)
"""Values of `feature_extractor.type` that are understood."""

_METHODS: dict[str, Any] = {
    "BILINEAR": "bilinear",
    "NEAREST_NEIGHBOR": "nearest",
    "BICUBIC": "bicubic",
    "AREA": "area",
}
_CONVERTERS: dict[str, Any] = {"IDENTITY": "identity", "SIGMOID": "sigmoid", "SOFTMAX": "softmax"}
_TAPS, _EXTRA_DEPTHS = SsdLayers().taps, SsdLayers().extra_depths


def read_model(section: Section) -> Model:
    """Reads `model`."""
    _, ssd = section.choose("model", ("ssd",))
    backbone, neck = _read_extractor(ssd.child("feature_extractor"))
    ssd.child("similarity_calculator").choose("region_similarity", ("iou_similarity",))
    return Model(
        resizer=_read_resizer(ssd.child("image_resizer"), "model.resizer"),
        backbone=backbone,
        neck=neck,
        head=_read_head(ssd.child("box_predictor"), "model.head"),
        anchors=_read_anchors(ssd.child("anchor_generator"), "model.anchors"),
        box_coder=_read_box_coder(ssd.child("box_coder"), "model.box_coder"),
        matcher=_read_matcher(ssd.child("matcher"), "model.matcher"),
        loss=read_loss(ssd, "model.loss"),
        postprocessing=_read_postprocessing(ssd.child("post_processing"), "model.postprocessing"),
        **ssd.fill(
            "model",
            "num_classes",
            background_class="add_background_class",
            freeze_batch_norm="freeze_batchnorm",
        ),
    )


def _read_extractor(section: Section) -> tuple[MobileNetV1, SsdLayers]:
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


def _read_resizer(section: Section, path: str) -> Resizer:
    name, chosen = section.choose(
        "image_resizer_oneof", ("fixed_shape_resizer", "keep_aspect_ratio_resizer")
    )
    method = _METHODS[chosen.value("resize_method", f"{path}.method")]
    if name == "fixed_shape_resizer":
        return FixedShapeResizer(method=method, **chosen.fill(path, "height", "width"))
    if not chosen.value("pad_to_max_dimension"):
        chosen.log.warnings.append(
            f"{chosen.position('pad_to_max_dimension')}: keep_aspect_ratio_resizer without "
            "pad_to_max_dimension gives images of many shapes; stillbox pads them to "
            "max_dimension squared, and anchors are relative to that square"
        )
    colour = chosen.values("per_channel_pad_value", f"{path}.pad_value")
    resizer = KeepAspectRatioResizer(
        method=method, **chosen.fill(path, "min_dimension", "max_dimension")
    )
    return dataclasses.replace(resizer, pad_value=colour) if colour else resizer


def _read_head(section: Section, path: str) -> ConvolutionalHead:
    _, chosen = section.choose("box_predictor", ("convolutional_box_predictor",))
    if not chosen.has("use_dropout"):
        chosen.log.notes.append(
            f"{chosen.where}: use_dropout is not set, and the format's default is true; "
            "--set model.head.dropout=false switches it off"
        )
    return ConvolutionalHead(
        conv=read_hyperparams(chosen.child("conv_hyperparams"), f"{path}.conv"),
        **chosen.fill(
            path,
            "min_depth",
            "max_depth",
            "dropout_keep_probability",
            "kernel_size",
            layers_before="num_layers_before_predictor",
            dropout="use_dropout",
            class_bias_init="class_prediction_bias_init",
        ),
    )


def _read_anchors(section: Section, path: str) -> SsdAnchors:
    _, chosen = section.choose("anchor_generator_oneof", ("ssd_anchor_generator",))
    lists = {
        "scales": "scales",
        "aspect_ratios": "aspect_ratios",
        "height_strides": "height_stride",
        "width_strides": "width_stride",
        "height_offsets": "height_offset",
        "width_offsets": "width_offset",
    }
    # An empty list is passed on as such: here it means "none", not "the default".
    given: dict[str, Any] = {
        ours: chosen.values(theirs, f"{path}.{ours}") for ours, theirs in lists.items()
    }
    return SsdAnchors(
        **given,
        **chosen.fill(
            path,
            "num_layers",
            "min_scale",
            "max_scale",
            "interpolated_scale_aspect_ratio",
            "reduce_boxes_in_lowest_layer",
            "base_anchor_height",
            "base_anchor_width",
        ),
    )


def _read_box_coder(section: Section, path: str) -> FasterRcnnBoxCoder:
    _, chosen = section.choose("box_coder_oneof", ("faster_rcnn_box_coder",))
    return FasterRcnnBoxCoder(
        **chosen.fill(path, "y_scale", "x_scale", "height_scale", "width_scale")
    )


def _read_matcher(section: Section, path: str) -> ArgmaxMatcher:
    _, chosen = section.choose("matcher_oneof", ("argmax_matcher",))
    return ArgmaxMatcher(
        **chosen.fill(
            path,
            "matched_threshold",
            "unmatched_threshold",
            "ignore_thresholds",
            "negatives_lower_than_unmatched",
            "force_match_for_each_row",
        )
    )


def _read_postprocessing(section: Section, path: str) -> Postprocessing:
    suppression = section.child("batch_non_max_suppression")
    return Postprocessing(
        score_converter=_CONVERTERS[section.value("score_converter", f"{path}.score_converter")],
        nms=Nms(
            **suppression.fill(
                f"{path}.nms",
                "score_threshold",
                "iou_threshold",
                max_per_class="max_detections_per_class",
                max_total="max_total_detections",
            )
        ),
        **section.fill(path, "logit_scale"),
    )
