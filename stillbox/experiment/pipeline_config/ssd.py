"""`Ssd`: a one-stage detector, put together from its parts."""

import dataclasses

from stillbox.experiment.pipeline_config.boxes import (
    read_anchors,
    read_box_coder,
    read_matcher,
    read_similarity,
)
from stillbox.experiment.pipeline_config.extractors import read_extractor
from stillbox.experiment.pipeline_config.heads import read_head
from stillbox.experiment.pipeline_config.losses import read_loss
from stillbox.experiment.pipeline_config.postprocessing import read_postprocessing
from stillbox.experiment.pipeline_config.resizers import read_resizer, resizer_without_shape
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import (
    CanvasResizer,
    KeepAspectRatioResizer,
    MnasFpn,
    MobileDet,
    OneStage,
    PixelNormalization,
    Resizer,
)


def read_ssd(ssd: MessageSection) -> OneStage:
    """Reads `model.ssd`."""
    features = ssd.child("feature_extractor")
    extractor = read_extractor(features)
    never_frozen = isinstance(extractor.backbone, MobileDet) or isinstance(extractor.neck, MnasFpn)
    if never_frozen and ssd.value("freeze_batchnorm"):
        ssd.note(
            "freeze_batchnorm",
            "the original goes on training the batch norms of this feature extractor; stillbox "
            "freezes them",
        )
    box_coder = read_box_coder(ssd.child("box_coder"), "model.box_coder")
    return OneStage(
        resizer=_read_resizer(ssd.child("image_resizer"), extractor.pixels),
        pixels=extractor.pixels,
        backbone=extractor.backbone,
        neck=extractor.neck,
        head=read_head(
            ssd.child("box_predictor"),
            "model.head",
            keras=extractor.keras,
            code_size=box_coder.code_size,
        ),
        anchors=read_anchors(ssd.child("anchor_generator"), "model.anchors"),
        box_coder=box_coder,
        matcher=read_matcher(ssd.child("matcher"), "model.matcher"),
        similarity=read_similarity(ssd.child("similarity_calculator"), "model.similarity"),
        loss=read_loss(ssd, "model.loss"),
        postprocessing=read_postprocessing(
            ssd.child("post_processing"), "model.postprocessing", ssd.child("box_predictor")
        ),
        **features.fill("model", "pad_to_multiple"),
        **ssd.fill(
            "model",
            "num_classes",
            background_class="add_background_class",
            freeze_batch_norm="freeze_batchnorm",
        ),
    )


def _read_resizer(section: MessageSection, pixels: PixelNormalization) -> Resizer:
    resizer = read_resizer(section, "model.resizer")
    # A rule refuses a colour with another number of channels.
    if isinstance(resizer, KeepAspectRatioResizer | CanvasResizer) and len(
        resizer.pad_value
    ) == len(pixels.mean):
        # A detector of one stage pads what it has normalised, so that zeros are the mean colour.
        colours = zip(resizer.pad_value, pixels.mean, pixels.std, strict=True)
        pad_value = tuple(mean + std * padding for padding, mean, std in colours)
        resizer = dataclasses.replace(resizer, pad_value=pad_value)
    unpadded = resizer_without_shape(section)
    if unpadded is not None and section.has("keep_aspect_ratio_resizer"):
        unpadded.warn(
            "pad_to_max_dimension",
            "keep_aspect_ratio_resizer without pad_to_max_dimension gives images of many shapes; "
            "stillbox pads them to max_dimension squared, and anchors are relative to that square",
        )
    return resizer
