"""`FasterRcnn`: a two-stage detector, put together from its parts."""

import dataclasses
from typing import Any

from stillbox.experiment.pipeline_config.box_stage import read_box_stage
from stillbox.experiment.pipeline_config.boxes import read_pixel_anchors
from stillbox.experiment.pipeline_config.faster_rcnn_extractors import read_extractor
from stillbox.experiment.pipeline_config.layers import read_hyperparams
from stillbox.experiment.pipeline_config.no_effect import REFUSED
from stillbox.experiment.pipeline_config.resizers import read_resizer, resizer_without_shape
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import ConvHyperparams, FasterRcnn, ProposalStage

_WITHOUT_CONTEXT = "take it out: without it the file describes a Faster R-CNN"
_STAGES = "number_of_stages"
_ALONE = "number_of_stages is 1, and there is no second stage"
_SECOND_STAGE = (
    "initial_crop_size",
    "maxpool_kernel_size",
    "maxpool_stride",
    "use_matmul_crop_and_resize",
    "second_stage_box_predictor",
    "second_stage_batch_size",
    "second_stage_balance_fraction",
    "second_stage_post_processing",
    "second_stage_localization_loss_weight",
    "second_stage_classification_loss_weight",
    "second_stage_classification_loss",
    "hard_example_miner",
)


def read_faster_rcnn(section: MessageSection) -> FasterRcnn:
    """Reads `model.faster_rcnn`."""
    if section.has("context_config"):
        section.refuse("context_config", REFUSED["FasterRcnn.context_config"], _WITHOUT_CONTEXT)
    features = section.child("feature_extractor")
    extractor = read_extractor(features)
    boxes = None
    if _count_stages(section) == 2:
        boxes = read_box_stage(section, extractor.head, "model.boxes", keras=extractor.keras)
    model = FasterRcnn(
        resizer=read_resizer(section.child("image_resizer"), "model.resizer"),
        mask_padding=_masks_padding(section.child("image_resizer")),
        pixels=extractor.pixels,
        backbone=extractor.backbone,
        neck=extractor.neck,
        proposals=_read_proposals(section, "model.proposals", keras=extractor.keras),
        boxes=boxes,
        freeze_batch_norm=False,
        **section.fill("model", "num_classes"),
    )
    trained = features.value("batch_norm_trainable", "model.freeze_batch_norm")
    return model if trained else _frozen(model)


def _count_stages(section: MessageSection) -> int:
    stages: int = section.value(_STAGES, "model.boxes")
    if stages not in (1, 2):
        masks = "the third stage predicts masks, which are not supported" if stages == 3 else None
        section.refuse(_STAGES, masks, "there is: 1, 2")
    if stages == 1:
        section.ignore(_ALONE, *_SECOND_STAGE)
    return stages


def _masks_padding(section: MessageSection) -> bool:
    """Says whether padding is masked: where the original has none that all images share."""
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


def _frozen(model: FasterRcnn) -> FasterRcnn:
    """Returns a model whose statistics rest, as the original's without `batch_norm_trainable`."""
    predictors = [model.proposals.conv, *([model.boxes.predictor] if model.boxes else [])]
    if not any(conv.batch_norm for conv in predictors):
        return dataclasses.replace(model, freeze_batch_norm=True)
    # It does not concern those of the predictors.
    changes: dict[str, Any] = {"backbone": _rested(model.backbone), "neck": _rested(model.neck)}
    if model.boxes is not None:
        head = _rested(model.boxes.head)
        changes["boxes"] = dataclasses.replace(model.boxes, head=head)
    return dataclasses.replace(model, **changes)


def _rested(part: Any) -> Any:  # noqa: ANN401
    conv: ConvHyperparams | None = part.conv
    if conv is None or conv.batch_norm is None:
        return part
    norm = dataclasses.replace(conv.batch_norm, train=False)
    return dataclasses.replace(part, conv=dataclasses.replace(conv, batch_norm=norm))


def _read_proposals(section: MessageSection, path: str, *, keras: bool) -> ProposalStage:
    combined = section.value("use_combined_nms_in_first_stage", f"{path}.keep_outside")
    static = section.value("use_static_shapes", f"{path}.drop_at_threshold")
    return ProposalStage(
        conv=_read_conv(section, f"{path}.conv", keras=keras),
        anchors=read_pixel_anchors(
            section.child("first_stage_anchor_generator"), f"{path}.anchors"
        ),
        keep_outside=combined,
        # Combined NMS takes precedence, and keeps boxes whose overlap is the threshold itself.
        drop_at_threshold=static and not combined,
        **section.fill(
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


def _read_conv(section: MessageSection, path: str, *, keras: bool) -> ConvHyperparams:
    hyperparams = section.child("first_stage_box_predictor_conv_hyperparams")
    conv = read_hyperparams(hyperparams, path, keras=keras)
    if hyperparams.has("activation") and conv.activation != "relu6":
        hyperparams.note(
            "activation",
            "the original has relu6 in the region proposal network whatever is configured, and so "
            f"has stillbox; --set {path}.activation={conv.activation} follows the config",
        )
    return dataclasses.replace(conv, activation="relu6")
