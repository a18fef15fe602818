"""A detector of two stages so small that it compiles in seconds."""

import numpy as np

from stillbox.boxes.structures import Batch
from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import resolve
from tests.small import SMALL

SMALL_OVERRIDES = (
    "model={kind: faster_rcnn, num_classes: 6}",
    "model.resizer={kind: fixed_shape, height: 64, width: 64}",
    "model.pixels={mean: [127.5, 127.5, 127.5], std: [127.5, 127.5, 127.5]}",
    "model.backbone={kind: mobilenet_v1, depth_multiplier: 0.125, min_depth: 8}",
    "model.neck={kind: identity, min_level: 3, max_level: 3}",
    "model.freeze_batch_norm=false",
    "model.proposals={depth: 16, sample_size: 32, max_proposals: 24, clip_anchors: true}",
    "model.proposals.anchors={kind: grid, base_height: 32, base_width: 32, "
    "scales: [0.5, 1.0], height_stride: 8, width_stride: 8}",
    "model.boxes={sample_size: 16, crop: {kind: crop_and_resize, size: 6}}",
    "model.boxes.head={kind: fully_connected, widths: [32, 32]}",
    "model.boxes.postprocessing.nms={max_per_class: 10, max_total: 10}",
)
"""Changes that make it out of the recipe `demo_scenes`."""


def small_words(*overrides: str) -> list[str]:
    """Returns the changes, with the changes of the small run around them."""
    run = [word for word in SMALL if not word.startswith("model.")]
    return [*SMALL_OVERRIDES, *run, *overrides]


def small_model(*overrides: str):
    """Returns the detector's configuration."""
    return resolve("demo_scenes", changes_of(small_words(*overrides))).experiment.model


def small_batch(count: int = 2, side: int = 64, seed: int = 0) -> Batch:
    """Returns noise with two boxes an image."""
    rng = np.random.default_rng(seed)
    boxes, classes = np.zeros((count, 3, 4), np.float32), np.zeros((count, 3), np.int32)
    weights = np.zeros((count, 3), np.float32)
    boxes[:, :2] = [[0.1, 0.2, 0.6, 0.7], [0.4, 0.5, 0.9, 0.8]]
    classes[:, :2], weights[:, :2] = [1, 4], 1
    return Batch(
        images=rng.uniform(0, 255, (count, side, side, 3)).astype(np.float32),
        boxes=boxes,
        classes=classes,
        weights=weights,
        true_sizes=np.full((count, 2), side, np.int32),
        records=np.arange(count, dtype=np.int32),
        image_weights=np.ones(count, np.float32),
    )
