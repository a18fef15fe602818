"""`FasterRcnn`, a two-stage detector, and `FasterRcnnFeatureExtractor`.

An extractor is backbone, neck and box head in one message. The second stage has crops,
`MaskRCNNBoxPredictor`, losses and post-processing.
"""

import dataclasses
import re
from typing import Any, Literal, NamedTuple, TypeVar

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.boxes import (
    read_classification,
    read_miner,
    read_pixel_anchors,
    read_postprocessing,
)
from stillbox.experiment.pipeline_config.extractors import (
    RESNET_PIXELS,
    read_keras_resnet,
    read_type,
)
from stillbox.experiment.pipeline_config.layers import (
    of_a_replica,
    read_hyperparams,
    read_resizer,
    resizer_without_shape,
)
from stillbox.experiment.pipeline_config.section import REFUSED, MessageSection
from stillbox.experiment.variants import RegisteredConfig
from stillbox.references import Setting

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

# The default of the original's layers.
_GLOROT = schema.VarianceScaling(factor=1.0, uniform=True, mode="fan_avg")


class Extractor(NamedTuple):
    """The parts that one `feature_extractor` describes."""

    backbone: schema.Backbone
    neck: schema.Neck
    head: schema.BoxHead
    keras: bool
    """The extractor is of the original's second generation."""
    pixels: schema.PixelNormalization = RESNET_PIXELS


def read_extractor(section: MessageSection) -> Extractor:
    """Reads `feature_extractor`."""
    kind = read_type(section, EXTRACTORS, _REFUSED)
    keras, depth = kind.endswith("_keras"), re.search(r"resnet(\d+)", kind)
    section.ignore("no extractor of the original takes it", "pad_to_multiple")
    if depth and kind.endswith("_fpn_keras"):
        return _read_fpn(section, int(depth[1]))
    overrides = "override_base_feature_extractor_hyperparams"
    section.ignore(_PLAIN, "conv_hyperparams", overrides, "fpn")
    if depth:
        return _read_resnet(section, int(depth[1]), keras=keras)
    if "inception_resnet" in kind:
        return _read_inception_resnet(section, keras=keras)
    return _read_inception(section)


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
        problem = "the feature extractor has no conv_hyperparams, which its pyramid is built from"
        raise UserError(problem, where=section.where(), fix="add conv_hyperparams { ... }")
    conv = read_hyperparams(section.child(name), "model.neck.conv", keras=True)
    # What the message leaves out has other defaults than a message that is left out.
    levels: dict[str, Any] = {"min_level": 2, "max_level": 6}
    if section.has("fpn"):
        levels = section.child("fpn").read_fields(
            "model.neck", "min_level", "max_level", depth="additional_layer_depth"
        )
    dense = schema.ConvHyperparams(initializer=_GLOROT, batch_norm=conv.batch_norm)
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


_CROP = {
    "size": "initial_crop_size",
    "pool_size": "maxpool_kernel_size",
    "pool_stride": "maxpool_stride",
}
_USUAL_CROP = "initial_crop_size: 14 maxpool_kernel_size: 2 maxpool_stride: 2"
_CODES = 4
_RATIO = ("max_negatives_per_positive", "min_negatives_per_image")


def read_box_stage(
    section: MessageSection, head: schema.BoxHead, path: str, *, keras: bool
) -> schema.RoIHead:
    """Reads the fields of the second stage; `keras`: of a model of the second generation."""
    predictor = section.child("second_stage_box_predictor")
    predictor = predictor.child(predictor.member("box_predictor", {"mask_rcnn_box_predictor": 0}))
    if predictor.value("box_code_size") != _CODES:
        predictor.refuse("box_code_size", f"boxes are written as {_CODES} numbers", "leave it out")
    return schema.RoIHead(
        crop=_read_crop(section, f"{path}.crop"),
        head=head,
        predictor=_read_predictor(predictor, f"{path}.predictor", keras=keras),
        classification=_read_loss(section, f"{path}.classification"),
        hard_example_miner=_read_miner(section, path),
        postprocessing=_read_postprocessing(section, f"{path}.postprocessing"),
        **predictor.read_fields(
            path,
            "dropout_keep_probability",
            dropout="use_dropout",
            share_boxes="share_box_across_classes",
        ),
        **section.read_fields(
            path,
            sample_size="second_stage_batch_size",
            positive_fraction="second_stage_balance_fraction",
            classification_weight="second_stage_classification_loss_weight",
            localization_weight="second_stage_localization_loss_weight",
        ),
    )


def _read_crop(section: MessageSection, path: str) -> schema.CropAndResize:
    sides = section.read_fields(path, **_CROP)
    for ours, theirs in _CROP.items():
        if not section.has(theirs):
            problem = f"{section.label(theirs)} is not set, and the format has no default for it"
            raise UserError(
                problem, where=section.where(), fix=f"it is common to write {_USUAL_CROP}"
            )
        if sides[ours] < 1:
            section.refuse(theirs, "a crop has at least one row", f"as in {_USUAL_CROP}")
    matmul = section.value("use_matmul_crop_and_resize", f"{path}.outside")
    return schema.CropAndResize(outside="fade" if matmul else "zero", **sides)


def _read_predictor(predictor: MessageSection, path: str, *, keras: bool) -> schema.ConvHyperparams:
    """Reads `fc_hyperparams`, as far as the original heeds them."""
    name = "fc_hyperparams"
    heeded = schema.ConvHyperparams(activation="none", initializer=_GLOROT)
    if not predictor.has(name):
        return heeded
    section = predictor.child(name)
    given = read_hyperparams(section, path, keras=keras)
    fully_connected = section.value("op") == "fc"
    if section.has("activation") and given.activation != "none":
        section.note("activation", "activation has no effect: nothing follows the predictions")
    given = dataclasses.replace(given, activation="none")
    if fully_connected and not keras:
        return given
    if keras:
        if section.has("op") and not fully_connected:
            section.note("op", "op has no effect in the second generation of the original")
        normed = given.batch_norm is not None
        heeded = dataclasses.replace(heeded, batch_norm=given.batch_norm, force_bias=normed)
        why = "the second generation of the original leaves its fully connected layers at Keras's"
    else:
        why = "op is not FC, so that in the original fc_hyperparams reach no fully connected layer"
    if _differs(given, heeded):
        section.warn(
            "initializer",
            f"{why} defaults: no penalty, Glorot's initialiser; "
            f"{Setting(f'{path}.initializer', '...')} and {path}.regularizer=... change that",
        )
    return heeded


def _differs(given: schema.ConvHyperparams, heeded: schema.ConvHyperparams) -> bool:
    """Returns whether hyperparameters that are not heeded would have an effect."""
    same = (given.initializer, given.batch_norm) == (heeded.initializer, heeded.batch_norm)
    # A penalty of weight 0 is none.
    return not same or bool(getattr(given.regularizer, "weight", 0.0))


def _read_loss(section: MessageSection, path: str) -> schema.ClassificationLoss:
    name = "second_stage_classification_loss"
    loss = section.child(name)
    if not loss.has_any():
        return schema.SoftmaxLoss()
    if loss.has("bootstrapped_sigmoid"):
        why = "the original computes weighted_softmax in its place"
        loss.refuse("bootstrapped_sigmoid", why, "write weighted_softmax { }")
    read: schema.ClassificationLoss = read_classification(loss, path)
    return read


def _read_miner(section: MessageSection, path: str) -> schema.HardExampleMiner | None:
    name = "hard_example_miner"
    if section.has(name):
        section.child(name).ignore("this miner is not told which proposals are matched", *_RATIO)
        section.warn(
            name,
            "the original mines in the first image of a batch and has no second-stage loss for "
            "the others; stillbox mines in all of them",
        )
    return read_miner(section, path, **dict.fromkeys(_RATIO, 0))


def _read_postprocessing(section: MessageSection, path: str) -> schema.Postprocessing:
    """Reads the post-processing; boxes are relative to the true image whatever is set."""
    message = section.child("second_stage_post_processing")
    nms = message.child("batch_non_max_suppression")
    if nms.get("use_combined_nms"):
        why = "combined NMS cannot make boxes relative to the true image, as Faster R-CNN does"
        nms.refuse("use_combined_nms", why, "false")
    postprocessing = read_postprocessing(message, path)
    if not postprocessing.nms.change_coordinate_frame:
        nms.note(
            "change_coordinate_frame",
            "change_coordinate_frame false has no effect in Faster R-CNN: boxes are relative to "
            "the true image",
        )
    framed = dataclasses.replace(postprocessing.nms, change_coordinate_frame=True)
    return dataclasses.replace(postprocessing, nms=framed)


_WITHOUT_CONTEXT = "take it out: without it the file describes a Faster R-CNN"
_STAGES = "number_of_stages"
_ALONE = "number_of_stages is 1, and there is no second stage"
_SECOND_STAGE = (
    *("initial_crop_size", "maxpool_kernel_size", "maxpool_stride", "use_matmul_crop_and_resize"),
    *("second_stage_box_predictor", "second_stage_batch_size", "second_stage_balance_fraction"),
    *("second_stage_post_processing", "second_stage_localization_loss_weight"),
    *("second_stage_classification_loss_weight", "second_stage_classification_loss"),
    "hard_example_miner",
)


def read_faster_rcnn(section: MessageSection) -> schema.FasterRcnn:
    """Reads `model.faster_rcnn`."""
    if section.has("context_config"):
        section.refuse("context_config", REFUSED["FasterRcnn.context_config"], _WITHOUT_CONTEXT)
    features = section.child("feature_extractor")
    extractor = read_extractor(features)
    boxes = None
    if _count_stages(section) == 2:
        boxes = read_box_stage(section, extractor.head, "model.boxes", keras=extractor.keras)
    model = schema.FasterRcnn(
        resizer=read_resizer(section.child("image_resizer"), "model.resizer"),
        mask_padding=_masks_padding(section.child("image_resizer")),
        pixels=extractor.pixels,
        backbone=extractor.backbone,
        neck=extractor.neck,
        proposals=_read_proposals(section, "model.proposals", keras=extractor.keras),
        boxes=boxes,
        freeze_batch_norm=False,
        **section.read_fields("model", "num_classes"),
    )
    trained = features.value("batch_norm_trainable", "model.freeze_batch_norm")
    return model if trained else _frozen(model)


def _count_stages(section: MessageSection) -> int:
    # The name that the field had in 2017.
    alone = section.value("first_stage_only", "model.boxes")
    stages: int = section.value(_STAGES, "model.boxes")
    if alone:
        stages = 1
    if stages not in (1, 2):
        masks = "the third stage predicts masks, which are not supported" if stages == 3 else None
        section.refuse(_STAGES, masks, "there is: 1, 2")
    if stages == 1:
        section.ignore(_ALONE, *_SECOND_STAGE)
    return stages


def _masks_padding(section: MessageSection) -> bool:
    """Returns whether padding is masked: where the original has none that all images share."""
    resizer, path = resizer_without_shape(section), "model.mask_padding"
    if resizer is None:
        return False
    section.log.origins[path] = resizer.where()
    canvas = "max_dimension squared" if section.has("keep_aspect_ratio_resizer") else "canvas"
    resizer.note(
        "",
        "this resizer gives images of many shapes; stillbox pads them to "
        f"{canvas}, and the padding changes no result (mask_padding)",
    )
    return True


def _frozen(model: schema.FasterRcnn) -> schema.FasterRcnn:
    """Returns a model with frozen statistics, as the original's without `batch_norm_trainable`."""
    predictors = [model.proposals.conv, *([model.boxes.predictor] if model.boxes else [])]
    if not any(conv.batch_norm for conv in predictors):
        return dataclasses.replace(model, freeze_batch_norm=True)
    # Batch norm of the predictors is not concerned.
    changes: dict[str, Any] = {
        "backbone": _with_frozen_norm(model.backbone, model.backbone.conv),
        "neck": _with_frozen_norm(model.neck, model.neck.conv),
    }
    if model.boxes is not None:
        head = _with_frozen_norm(model.boxes.head, model.boxes.head.conv)
        changes["boxes"] = dataclasses.replace(model.boxes, head=head)
    return dataclasses.replace(model, **changes)


Part = TypeVar("Part", bound=RegisteredConfig)


def _with_frozen_norm(part: Part, conv: schema.ConvHyperparams | None) -> Part:
    if conv is None or conv.batch_norm is None:
        return part
    norm = dataclasses.replace(conv.batch_norm, train=False)
    return dataclasses.replace(part, conv=dataclasses.replace(conv, batch_norm=norm))


def _read_proposals(section: MessageSection, path: str, *, keras: bool) -> schema.RPN:
    combined = section.value("use_combined_nms_in_first_stage", f"{path}.keep_outside")
    static = section.value("use_static_shapes", f"{path}.drop_at_threshold")
    return schema.RPN(
        conv=_read_conv(section, f"{path}.conv", keras=keras),
        anchors=read_pixel_anchors(
            section.child("first_stage_anchor_generator"), f"{path}.anchors"
        ),
        keep_outside=combined,
        # Combined NMS takes precedence, and keeps boxes with an overlap equal to the threshold.
        drop_at_threshold=static and not combined,
        **section.read_fields(
            path,
            depth="first_stage_box_predictor_depth",
            kernel_size="first_stage_box_predictor_kernel_size",
            dilation="first_stage_atrous_rate",
            clip_anchors="clip_anchors_to_image",
            sample_size="first_stage_minibatch_size",
            positive_fraction="first_stage_positive_balance_fraction",
            localization_weight="first_stage_localization_loss_weight",
            objectness_weight="first_stage_objectness_loss_weight",
            score_threshold="first_stage_nms_score_threshold",
            iou_threshold="first_stage_nms_iou_threshold",
            max_proposals="first_stage_max_proposals",
        ),
    )


def _read_conv(section: MessageSection, path: str, *, keras: bool) -> schema.ConvHyperparams:
    hyperparams = section.child("first_stage_box_predictor_conv_hyperparams")
    conv = read_hyperparams(hyperparams, path, keras=keras)
    if hyperparams.has("activation") and conv.activation != "relu6":
        hyperparams.note(
            "activation",
            "the original has relu6 in the region proposal network whatever is configured, and "
            f"so has stillbox; {Setting(f'{path}.activation', conv.activation)} follows the config",
        )
    return dataclasses.replace(conv, activation="relu6")
