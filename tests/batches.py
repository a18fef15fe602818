"""Batches without a loader."""

import numpy as np

from stillbox.boxes.structures import Batch


def batch_of(images, boxes, weights, classes=None, image_weights=None) -> Batch:
    """Returns a batch of images `[B, H, W, 3]`, boxes `[B, G, 4]` and their weights `[B, G]`.

    Args:
        images: in the type that the model takes.
        boxes: relative corners.
        weights: of the boxes.
        classes: `[B, G]`; None: all are class 0.
        image_weights: `[B]`; None: all rows are images.
    """
    count = len(images)
    return Batch(
        images=images,
        boxes=np.asarray(boxes, np.float32),
        classes=np.zeros(np.shape(weights), np.int32) if classes is None else classes,
        weights=np.asarray(weights, np.float32),
        true_sizes=np.tile(np.int32(images.shape[1:3]), (count, 1)),
        records=np.arange(count, dtype=np.int32),
        image_weights=np.float32(np.ones(count) if image_weights is None else image_weights),
    )
