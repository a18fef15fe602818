"""The detector that a dictionary describes."""

from stillbox.experiment.params_dict.backbones import read_backbone
from stillbox.experiment.params_dict.boxes import (
    BOX_CODER,
    read_anchors,
    read_loss,
    read_matcher,
    read_postprocessing,
)
from stillbox.experiment.params_dict.heads import read_head
from stillbox.experiment.params_dict.inputs import PIXELS, read_resizer
from stillbox.experiment.params_dict.layers import note_statistics
from stillbox.experiment.params_dict.necks import read_neck
from stillbox.experiment.params_dict.reading import Reading
from stillbox.experiment.schema import Model


def read_model(reading: Reading) -> Model:
    """Reads everything between pixels and boxes."""
    classes = reading.take("architecture.num_classes", "model.num_classes")
    if classes < 2:
        reading.refuse(
            "architecture.num_classes",
            "the background is one of them, and nothing is left to detect",
            "one more than the classes of the label map",
        )
    model = Model(
        # The background counts there, and has a logit here.
        num_classes=classes - 1,
        background_class=True,
        class_slots="label_map_id",
        resizer=read_resizer(reading),
        pixels=PIXELS,
        backbone=read_backbone(reading),
        neck=read_neck(reading),
        head=read_head(reading),
        anchors=read_anchors(reading),
        box_coder=BOX_CODER,
        matcher=read_matcher(reading),
        loss=read_loss(reading),
        postprocessing=read_postprocessing(reading),
    )
    note_statistics(reading)
    return model
