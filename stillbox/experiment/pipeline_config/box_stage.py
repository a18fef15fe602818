"""The second stage of `FasterRcnn`: crops, `MaskRCNNBoxPredictor`, losses, post-processing."""

import dataclasses

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.faster_rcnn_extractors import GLOROT
from stillbox.experiment.pipeline_config.layers import read_hyperparams
from stillbox.experiment.pipeline_config.losses import read_classification, read_miner
from stillbox.experiment.pipeline_config.postprocessing import read_postprocessing
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import (
    BoxHead,
    BoxStage,
    ClassificationLoss,
    ConvHyperparams,
    CropAndResize,
    HardExampleMiner,
    Postprocessing,
    SoftmaxLoss,
)

_CROP = {
    "size": "initial_crop_size",
    "pool_size": "maxpool_kernel_size",
    "pool_stride": "maxpool_stride",
}
_USUAL_CROP = "initial_crop_size: 14 maxpool_kernel_size: 2 maxpool_stride: 2"
_CODES = 4
_RATIO = ("max_negatives_per_positive", "min_negatives_per_image")


def read_box_stage(section: MessageSection, head: BoxHead, path: str, *, keras: bool) -> BoxStage:
    """Reads the fields of the second stage.

    Args:
        section: the `FasterRcnn`.
        head: what the feature extractor has for crops.
        path: the stage's place in the experiment.
        keras: whether the model belongs to the original's second generation.
    """
    predictor = section.child("second_stage_box_predictor")
    predictor = predictor.child(predictor.member("box_predictor", {"mask_rcnn_box_predictor": 0}))
    _check_codes(predictor)
    return BoxStage(
        crop=_read_crop(section, f"{path}.crop"),
        head=head,
        predictor=_read_predictor(predictor, f"{path}.predictor", keras=keras),
        classification=_read_loss(section, f"{path}.classification"),
        hard_example_miner=_read_miner(section, path),
        postprocessing=_read_postprocessing(section, f"{path}.postprocessing"),
        **predictor.fill(
            path,
            "dropout_keep_probability",
            dropout="use_dropout",
            share_boxes="share_box_across_classes",
        ),
        **section.fill(
            path,
            sample_size="second_stage_batch_size",
            positive_fraction="second_stage_balance_fraction",
            classification_weight="second_stage_classification_loss_weight",
            localization_weight="second_stage_localization_loss_weight",
        ),
    )


def _check_codes(predictor: MessageSection) -> None:
    if predictor.value("box_code_size") != _CODES:
        predictor.refuse("box_code_size", f"boxes are written as {_CODES} numbers", "leave it out")


def _read_crop(section: MessageSection, path: str) -> CropAndResize:
    sides = section.fill(path, **_CROP)
    for ours, theirs in _CROP.items():
        if not section.has(theirs):
            raise UserError(
                f"{section.label(theirs)} is not set, and the format has no default for it",
                where=section.where(),
                fix=f"it is common to write {_USUAL_CROP}",
            )
        if sides[ours] < 1:
            section.refuse(theirs, "a crop has at least one row", f"as in {_USUAL_CROP}")
    matmul = section.value("use_matmul_crop_and_resize", f"{path}.outside")
    return CropAndResize(outside="fade" if matmul else "zero", **sides)


def _read_predictor(predictor: MessageSection, path: str, *, keras: bool) -> ConvHyperparams:
    """Reads `fc_hyperparams`, as far as the original heeds them."""
    name = "fc_hyperparams"
    heeded = ConvHyperparams(activation="none", initializer=GLOROT)
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
            f"{why} defaults: no penalty, Glorot's initialiser; --set {path}.initializer=... and "
            f"{path}.regularizer=... change that",
        )
    return heeded


def _differs(given: ConvHyperparams, heeded: ConvHyperparams) -> bool:
    """Says whether hyperparameters that are not heeded would have an effect."""
    same = (given.initializer, given.batch_norm) == (heeded.initializer, heeded.batch_norm)
    # A penalty of weight 0 is none.
    return not same or bool(getattr(given.regularizer, "weight", 0.0))


def _read_loss(section: MessageSection, path: str) -> ClassificationLoss:
    name = "second_stage_classification_loss"
    loss = section.child(name)
    if not loss.has_any():
        return SoftmaxLoss()
    if loss.has("bootstrapped_sigmoid"):
        loss.refuse(
            "bootstrapped_sigmoid",
            "the original computes weighted_softmax in its place",
            "write weighted_softmax { }",
        )
    read: ClassificationLoss = read_classification(loss, path)
    return read


def _read_miner(section: MessageSection, path: str) -> HardExampleMiner | None:
    name = "hard_example_miner"
    if section.has(name):
        section.child(name).ignore("this miner is not told which proposals are matched", *_RATIO)
        section.warn(
            name,
            "the original mines in the first image of a batch and has no second-stage loss for "
            "the others; stillbox mines in all of them",
        )
    return read_miner(section, path, **dict.fromkeys(_RATIO, 0))


def _read_postprocessing(section: MessageSection, path: str) -> Postprocessing:
    """Reads the post-processing; boxes are relative to the true image whatever is set."""
    message = section.child("second_stage_post_processing")
    nms = message.child("batch_non_max_suppression")
    if nms.get("use_combined_nms"):
        nms.refuse(
            "use_combined_nms",
            "combined NMS cannot make boxes relative to the true image, as Faster R-CNN does",
            "false",
        )
    postprocessing = read_postprocessing(message, path)
    if not postprocessing.nms.change_coordinate_frame:
        nms.note(
            "change_coordinate_frame",
            "change_coordinate_frame false has no effect in Faster R-CNN: boxes are relative to "
            "the true image",
        )
    own = dataclasses.replace(postprocessing.nms, change_coordinate_frame=True)
    return dataclasses.replace(postprocessing, nms=own)
