"""Recipes learn from real photographs: blood cells, and the four pipelines that were published."""

import json

import pytest

from stillbox.cli.main import main
from stillbox.evaluation.history import HISTORY, read_history
from tests.small import SHARED, needs_shared

pytestmark = [pytest.mark.proof, pytest.mark.slow, needs_shared]

BCCD = SHARED / "data/bccd"
IMAGENET = SHARED / "weights/mobilenet_v1_1.0_imagenet_bnstat.npz"


# About half an hour on two cores.
def test_the_recipe_reaches_an_ap50_of_75_on_the_test_split(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the recipe's paths are relative
    for name in ("train", "val", "test"):
        convert = ["data", "convert", "voc", "--root", str(BCCD), "--set", name, "--name", name]
        assert main([*convert, "--output", "bccd"]) == 0
    command = ["train", "ssd_mobilenet_v1_bccd", "--model-dir", "model"]
    assert main([*command, "--set", f"train.fine_tune.checkpoint={IMAGENET}"]) == 0
    test_split = ["--set", "data.evaluation.paths=bccd/test.record-*"]
    assert main(["evaluate", "model", *test_split, "--output", "report"]) == 0
    metrics = json.loads((tmp_path / "report/metrics.json").read_text())
    assert metrics["images"] == 72
    assert metrics["summary"]["AP50"] >= 0.75


MOBILENET = SHARED / "weights/mobilenet_v1_1.0_imagenet_bnstat.npz"
STEPS = 80

# What is smaller than published, so that a CPU gets through: the pyramids' canvas, batch and rate.
SMALLER = {
    "ssd_mobilenet_v1_300x300": {"train.batch_size": 8},
    "ssd_mobilenet_v1_ppn_300x300": {"train.batch_size": 8},
    "ssd_mobilenet_v1_fpn_640x640": {
        "train.batch_size": 8,
        "model.resizer.height": 192,
        "model.resizer.width": 192,
        "model.neck.conv.batch_norm.decay": 0.9,
    },
    "ssd_resnet50_v1_fpn_640x640": {
        "train.batch_size": 8,
        "model.resizer.height": 192,
        "model.resizer.width": 192,
        "model.neck.conv.batch_norm.decay": 0.9,
    },
}
# The ResNet starts from random weights: there are none to start from.
LEAST_AP50 = {
    "ssd_mobilenet_v1_300x300": 0.35,
    "ssd_mobilenet_v1_ppn_300x300": 0.3,
    "ssd_mobilenet_v1_fpn_640x640": 0.35,
    "ssd_resnet50_v1_fpn_640x640": 0.25,
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bccd")
    for name in ("train", "test"):
        convert = ["data", "convert", "voc", "--root", str(BCCD), "--set", name, "--name", name]
        assert main([*convert, "--output", str(folder)]) == 0
    return folder


# Two to seven minutes each on two cores.
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("recipe", SMALLER)
def test_the_loss_falls_and_blood_cells_are_found(recipe, precision, records, tmp_path):
    changes = {
        "model.num_classes": 3,
        "data.train.paths": records / "train.record-*",
        "data.train.label_map": records / "label_map.pbtxt",
        "data.evaluation.paths": records / "test.record-*",
        "data.evaluation.label_map": records / "label_map.pbtxt",
        "data.cache_images": "true",
        "train.precision": precision,
        "train.steps": STEPS,
        "train.log_every": 1,
        "train.optimizer.schedule.total_steps": STEPS,
        "train.optimizer.schedule.warmup_steps": 10,
        "train.optimizer.schedule.warmup_learning_rate": 0.005,
        "train.optimizer.schedule.learning_rate": 0.02,
        # So few steps would not move statistics that remember a thousand.
        "model.backbone.conv.batch_norm.decay": 0.9,
        "model.head.conv.batch_norm.decay": 0.9,
        "train.fine_tune.checkpoint": "" if "resnet" in recipe else MOBILENET,
        **SMALLER[recipe],
    }
    words = [word for item in changes.items() for word in ("--set", "{}={}".format(*item))]
    assert main(["train", recipe, "--model-dir", str(tmp_path), *words]) == 0
    history = read_history(tmp_path / HISTORY)
    for part in ("classification_loss", "localization_loss"):
        _, losses = history.series(part)
        assert losses[-10:].mean() < 0.85 * losses[:10].mean(), part
    _, scores = history.evaluations[-1]
    assert scores["AP50"] >= LEAST_AP50[recipe]
