"""Targets of a one-stage detector."""

import numpy as np

from stillbox.boxes.matchers import Targets
from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.models.targets import targets_of_batch


def batch_targets(batch: Batch, anchors: np.ndarray, model: schema.OneStage) -> Targets:
    """Returns the targets of a batch for anchors `[A, 4]`; padding rows have weights of 0."""
    return targets_of_batch(
        batch,
        anchors,
        matcher=model.matcher,
        similarity=model.similarity,
        box_coder=model.box_coder,
        input_size=model.resizer.input_size,
        num_classes=model.num_classes,
        background_class=model.background_class,
        encode_background_as_zeros=model.loss.encode_background_as_zeros,
        negative_class_weight=model.loss.negative_class_weight,
    )
