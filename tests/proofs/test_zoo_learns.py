"""Detectors of the second generation's zoo find blood cells, trained from random weights."""

import pytest

from tests.proofs.photographs import train_and_score, write_blood_cells
from tests.shared import needs_shared

pytestmark = [pytest.mark.proof, pytest.mark.slow, needs_shared]

FLIPS = "[{kind: random_horizontal_flip}, {kind: random_vertical_flip, probability: 0.5}]"
# Statistics of short runs must follow fast.
DECAYS = {f"model.{part}.conv.batch_norm.decay": 0.97 for part in ("backbone", "neck", "head")}
RUN = {
    **DECAYS,
    "model.num_classes": 3,
    "train.precision": "float32",
    "train.batch_size": 8,
    "train.log_every": 10,
    "train.gradient_clip_norm": 10.0,
    "train.augmentations": FLIPS,
}


def length(steps, rate):
    """Adam with a cosine of `steps`."""
    return {
        "train.steps": steps,
        "train.checkpoint_every": steps,
        "train.optimizer": f"{{kind: adam, schedule: {{kind: cosine, learning_rate: {rate}, "
        f"warmup_learning_rate: 0.0002, warmup_steps: 30, total_steps: {steps}}}}}",
    }


DETECTORS = {
    "efficientdet_d0_512x512": {
        **length(400, 0.004),
        "model.resizer.min_dimension": 256,
        "model.resizer.max_dimension": 256,
        # Blocks that are left out at random slow a short run down.
        "model.backbone.drop_connect_rate": 0.0,
        # Platelets have 16 pixels.
        "model.anchors.anchor_scale": 2.0,
    },
    "ssd_mobilenet_v2_fpnlite_320x320": {
        **length(300, 0.002),
        "model.anchors.anchor_scale": 2.5,
    },
}


# About ten minutes each on two cores.
@pytest.mark.parametrize("recipe", DETECTORS)
def test_blood_cells_are_found_from_random_weights(recipe, tmp_path):
    folder = tmp_path / "records"
    write_blood_cells(folder)
    data = {
        f"data.{use}": f"{{paths: {folder}/{name}.record-*, label_map: {folder}/label_map.pbtxt}}"
        for use, name in (("train", "train"), ("evaluation", "test"))
    }
    scores = train_and_score(recipe, tmp_path / "run", {**data, **RUN, **DETECTORS[recipe]})
    assert scores["AP50"] >= 0.75
