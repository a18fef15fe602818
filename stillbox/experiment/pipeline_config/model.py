"""`DetectionModel`: an SSD, put together from its parts."""

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
from stillbox.experiment.pipeline_config.resizers import read_resizer
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import OneStage


def read_model(section: MessageSection) -> OneStage:
    """Reads `model`."""
    ssd = section.child(section.member("model", {"ssd": None}))
    features = ssd.child("feature_extractor")
    extractor = read_extractor(features)
    box_coder = read_box_coder(ssd.child("box_coder"), "model.box_coder")
    return OneStage(
        resizer=read_resizer(ssd.child("image_resizer"), "model.resizer"),
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
        postprocessing=read_postprocessing(ssd, "model.postprocessing"),
        **features.fill("model", "pad_to_multiple"),
        **ssd.fill(
            "model",
            "num_classes",
            background_class="add_background_class",
            freeze_batch_norm="freeze_batchnorm",
        ),
    )
