"""`DetectionModel`: an SSD, put together from its parts."""

from stillbox.experiment.pipeline_config.anchors import read_anchors
from stillbox.experiment.pipeline_config.extractors import read_extractor
from stillbox.experiment.pipeline_config.heads import read_head
from stillbox.experiment.pipeline_config.losses import read_loss
from stillbox.experiment.pipeline_config.matching import read_box_coder, read_matcher
from stillbox.experiment.pipeline_config.postprocessing import read_postprocessing
from stillbox.experiment.pipeline_config.resizers import read_resizer
from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import Model


def read_model(section: Section) -> Model:
    """Reads `model`."""
    _, ssd = section.choose("model", ("ssd",))
    backbone, neck = read_extractor(ssd.child("feature_extractor"))
    ssd.child("similarity_calculator").choose("region_similarity", ("iou_similarity",))
    return Model(
        resizer=read_resizer(ssd.child("image_resizer"), "model.resizer"),
        backbone=backbone,
        neck=neck,
        head=read_head(ssd.child("box_predictor"), "model.head"),
        anchors=read_anchors(ssd.child("anchor_generator"), "model.anchors"),
        box_coder=read_box_coder(ssd.child("box_coder"), "model.box_coder"),
        matcher=read_matcher(ssd.child("matcher"), "model.matcher"),
        loss=read_loss(ssd, "model.loss"),
        postprocessing=read_postprocessing(ssd.child("post_processing"), "model.postprocessing"),
        **ssd.fill(
            "model",
            "num_classes",
            background_class="add_background_class",
            freeze_batch_norm="freeze_batchnorm",
        ),
    )
