"""What most tests use: the shared folder of real data, and a detector that trains in seconds."""

from pathlib import Path

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import resolve
from stillbox.experiment.schema import Experiment

SHARED = Path(__file__).resolve().parents[2] / "shared"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder ../shared (real data, weights, goldens) is absent"
)


# 64 x 64 pixels, three convolutions, an eighth of the width: everything is there, nothing is large.
SMALL = (
    "model.resizer.height=64",
    "model.resizer.width=64",
    "model.backbone.depth_multiplier=0.125",
    "model.backbone.min_depth=8",
    "model.neck.taps=[conv_1_pointwise, conv_2_pointwise]",
    "model.neck.extra_depths=[]",
    "model.anchors.num_layers=2",
    "model.anchors.scales=[0.2, 0.4]",
    "model.head.kernel_size=1",
    "train.batch_size=4",
    "train.steps=4",
    "train.log_every=1",
    "train.checkpoint_every=2",
    "train.evaluate_every=0",
    "train.optimizer.kind=momentum",
    "train.optimizer.schedule.kind=constant",
    "evaluation.batch_size=4",
    "data.cache_images=false",
)


# Three maps of one anchor at a location, with group norm behind every convolution of a tower.
DENSE = (
    "model.resizer={kind: fixed_shape, height: 64, width: 64}",
    "model.backbone.depth_multiplier=0.125",
    "model.backbone.min_depth=8",
    "model.neck={kind: fpn, min_level: 3, max_level: 5, depth: 16}",
    "model.background_class=false",
    "model.anchors={kind: multiscale, min_level: 3, max_level: 5, anchor_scale: 8.0, "
    "aspect_ratios: [1.0], scales_per_octave: 1}",
    "model.matcher={kind: atss}",
    "model.postprocessing.nms={score_threshold: 0.01, iou_threshold: 0.6, max_per_class: 4, "
    "max_total: 6, max_candidates_per_level: 40}",
    "model.head.conv={activation: relu, group_norm: {groups: 4}, batch_norm: null}",
    *(word for word in SMALL if not word.startswith("model.")),
)
DENSE_HEADS = {
    "gfl": (
        "model.head={kind: gfl, depth: 16, layers_before: 2}",
        "model.box_coder={kind: distribution, longest: 7}",
        "model.loss={kind: quality}",
    ),
    "atss": (
        "model.head={kind: atss, depth: 16, layers_before: 2}",
        "model.box_coder={kind: faster_rcnn, max_log_ratio: 4.135}",
        "model.loss={kind: quality, distribution_weight: 0, centerness_weight: 1}",
    ),
    "task_aligned": (
        "model.head={kind: task_aligned, depth: 16, layers_before: 2}",
        "model.box_coder={kind: distances}",
        "model.loss={kind: quality, distribution_weight: 0}",
        "model.postprocessing.nms.empty_boxes=drop",
    ),
}
"""Changes of the recipe `demo_scenes` for each head of the loss `quality`, before `DENSE`."""
BATCH_NORM = (
    "model.head.conv={activation: relu6, group_norm: null, "
    "batch_norm: {epsilon: 0.001, center: true, scale: true}}"
)
"""Instead of group norm, after `DENSE`."""


def small_overrides(scenes: Path, *overrides: str, evaluated: bool = True) -> list[str]:
    """Returns what makes the small experiment out of the recipe `demo_scenes`.

    Args:
        scenes: folder that `write_scenes` has filled.
        overrides: further changes.
        evaluated: whether there is anything to score.
    """
    validation = f"{scenes}/val.record-*" if evaluated else "[]"
    return [
        *SMALL,
        f"data.train.paths={scenes}/train.record-*",
        f"data.train.label_map={scenes}/label_map.pbtxt",
        f"data.evaluation.paths={validation}",
        f"data.evaluation.label_map={scenes}/label_map.pbtxt",
        *overrides,
    ]


def small_experiment(scenes: Path, *overrides: str, evaluated: bool = True) -> Experiment:
    """Returns the small experiment on these scenes."""
    return resolve(
        "demo_scenes", changes_of(small_overrides(scenes, *overrides, evaluated=evaluated))
    ).experiment


EVERY_DETECTION = {"min_score": 0, "classes_per_object": "all"}
"""For `Predictor.predict`: what the model finds, as evaluation and exports take it."""
