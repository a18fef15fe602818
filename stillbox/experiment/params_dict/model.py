"""The detector that a dictionary describes."""

from stillbox.experiment.params_dict.backbones import read_backbone
from stillbox.experiment.params_dict.boxes import (
    BOX_CODER,
    read_anchors,
    read_loss,
    read_matcher,
    read_postprocessing,
)
from stillbox.experiment.params_dict.inputs import PIXELS, read_resizer
from stillbox.experiment.params_dict.layers import note_statistics
from stillbox.experiment.params_dict.necks import read_head, read_neck
from stillbox.experiment.params_dict.section import KeySection
from stillbox.experiment.schema import OneStage


def read_model(root: KeySection) -> OneStage:
    """Reads everything between pixels and boxes."""
    classes = root.value("architecture.num_classes", "model.num_classes")
    if classes < 2:
        root.refuse(
            "architecture.num_classes",
            "the background is one of them, and nothing is left to detect",
            "one more than the classes of the label map",
        )
    model = OneStage(
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
