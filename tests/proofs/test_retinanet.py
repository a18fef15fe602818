"""RetinaNet learns sixteen photographs by heart, and blood cells from random weights."""

import pytest

from tests.proofs.photographs import train_and_score, write_blood_cells, write_photographs
from tests.shared import needs_shared

pytestmark = [pytest.mark.proof, pytest.mark.slow, needs_shared]

# Statistics of short runs must follow faster than those of 22,500 steps.
NORM = "{decay: 0.9, epsilon: 1.0e-4, center: true, scale: true}"
SMALL_HEAD = {
    "model.head.depth": 96,
    "model.head.layers_before": 2,
    "model.head.conv.batch_norm": NORM,
    "model.backbone.conv.batch_norm": NORM,
}
BACKBONES = {
    "retinanet": {
        "model.backbone.depth": 18,
        "model.neck.depth": 96,
        "model.neck.conv.batch_norm": NORM,
    },
    # Whole, but for the endpoints; without drop connect, which is against learning by heart.
    "spinenet49S_retinanet": {
        "model.backbone.endpoints_depth": 96,
        "model.backbone.drop_connect_rate": 0,
    },
}
STEPS = 400


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sixteen")
    write_photographs(folder)
    return folder


def optimizer(steps):
    """Adam: momentum, with which the recipes train for days, had an AP of .70 after 600 steps."""
    return (
        "{kind: adam, schedule: {kind: cosine, learning_rate: 0.001, warmup_learning_rate: 0.0001, "
        f"warmup_steps: 20, hold_steps: {steps // 2 - 20}, total_steps: {steps}, "
        "final_learning_rate: 0.00001}}"
    )


# A quarter of an hour each on two cores.
@pytest.mark.parametrize("recipe", BACKBONES)
def test_sixteen_images_are_learnt_by_heart(recipe, records, tmp_path):
    changes = {
        **SMALL_HEAD,
        **BACKBONES[recipe],
        "data.train.paths": records / "train.record-*",
        "data.evaluation.paths": records / "train.record-*",
        "model.resizer.height": 256,
        "model.resizer.width": 256,
        "model.resizer.min_scale": 1.0,
        "model.resizer.max_scale": 1.0,
        "model.anchors.anchor_scale": 3.0,
        "train.precision": "float32",
        "train.batch_size": 4,
        "train.steps": STEPS,
        "train.log_every": 10,
        "train.checkpoint_every": 100,
        "train.keep_checkpoints": 1,
        "train.evaluate_every": 100,
        "train.gradient_clip_norm": 10.0,
        "train.optimizer": optimizer(STEPS),
        "train.augmentations": "[]",
    }
    assert train_and_score(recipe, tmp_path, changes)["AP"] >= 0.90


def test_blood_cells_are_found_from_random_weights(tmp_path):
    folder, steps = tmp_path / "records", 250
    write_blood_cells(folder)
    changes = {
        **SMALL_HEAD,
        **BACKBONES["retinanet"],
        "model.num_classes": 3,
        "data.train.paths": folder / "train.record-*",
        "data.train.label_map": folder / "label_map.pbtxt",
        "data.evaluation.paths": folder / "test.record-*",
        "data.evaluation.label_map": folder / "label_map.pbtxt",
        # The recipe's anchors overlap 17 % of the platelets by half
        # or more, these 96 % (`stillbox anchors`).
        "model.anchors.anchor_scale": 2.5,
        "model.resizer.height": 320,
        "model.resizer.width": 320,
        "model.resizer.multiple": 64,
        "model.resizer.min_scale": 0.8,
        "model.resizer.max_scale": 1.2,
        "train.precision": "float32",
        "train.batch_size": 8,
        "train.steps": steps,
        "train.log_every": 10,
        "train.checkpoint_every": steps,
        "train.gradient_clip_norm": 10.0,
        "train.optimizer": optimizer(steps),
    }
    assert train_and_score("retinanet", tmp_path / "run", changes)["AP50"] >= 0.75
