"""What most tests use: the shared folder of real data, and a detector whose runs take seconds."""

from pathlib import Path

import pytest

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
        "demo_scenes", small_overrides(scenes, *overrides, evaluated=evaluated)
    ).experiment


EVERY_DETECTION = {"min_score": 0, "classes_per_object": "all"}
"""For `Predictor.predict`: what the model finds, as evaluation and exports take it."""
