"""Real configs build their whole detectors and take a step; one of 2017 trains on its own data."""

import csv
import math
import shutil

import pytest

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.cli.main import main
from stillbox.evaluation.history import HISTORY, read_history
from tests.experiment.test_pipeline_config import REFUSED
from tests.small import SHARED, needs_shared

pytestmark = [pytest.mark.proof, pytest.mark.slow, needs_shared]

RACCOON = SHARED / "data/raccoon"
CONFIGS = [
    path
    for path in sorted((SHARED / "configs/pipeline").glob("*.config"))
    if path.stem not in REFUSED
]


# About a minute each, most of it compiling; nothing is made smaller but the batch.
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_one_training_step_has_a_finite_loss(path, tmp_path):
    changes = {
        "data.train.paths": RACCOON / "data/test.record",
        "data.train.label_map": RACCOON / "label_map.pbtxt",
        "data.evaluation.paths": "[]",
        "data.evaluation.label_map": RACCOON / "label_map.pbtxt",
        "train.fine_tune.checkpoint": "",
        "train.batch_size": 1,
        "train.steps": 1,
        "train.log_every": 1,
    }
    words = [word for item in changes.items() for word in ("--set", "{}={}".format(*item))]
    assert main(["train", str(path), "--model-dir", str(tmp_path / "model"), *words]) == 0
    _, losses = read_history(tmp_path / "model" / HISTORY).series("loss")
    assert len(losses) == 1
    assert math.isfinite(losses[0])
    assert losses[0] > 0


STEPS = 150


def training_annotations(folder):
    """Copies the XML files of the owner's training split."""
    folder.mkdir()
    with (RACCOON / "data/train_labels.csv").open() as file:
        names = sorted({row["filename"] for row in csv.DictReader(file)})
    for name in names:
        source = RACCOON / "annotations" / name.replace(".jpg", ".xml")
        shutil.copy(source, folder / source.name)
    return len(names)


# About eight minutes on two cores.
def test_the_config_trains_with_only_its_paths_changed(tmp_path):
    images = training_annotations(tmp_path / "annotations")
    sources = ["--annotations", str(tmp_path / "annotations"), "--images", str(RACCOON / "images")]
    output = ["--output", str(tmp_path / "records"), "--name", "train"]
    assert main(["data", "convert", "voc", *sources, *output]) == 0
    changes = {
        "data.train.paths": tmp_path / "records/train.record-*",
        "data.train.label_map": RACCOON / "label_map.pbtxt",
        "data.evaluation.paths": RACCOON / "data/test.record",
        "data.evaluation.label_map": RACCOON / "label_map.pbtxt",
        # The config starts from a detector's checkpoint that nobody hands out any more.
        "train.fine_tune.checkpoint": "",
        # The config says nothing of steps, which means no end; a test wants one.
        "train.steps": STEPS,
        "train.log_every": 1,
    }
    words = [word for item in changes.items() for word in ("--set", "{}={}".format(*item))]
    model = tmp_path / "model"
    config = str(RACCOON / "pipeline.config")
    assert main(["train", config, "--model-dir", str(model), *words]) == 0
    assert ModelDirectory.open(model).latest_step() == STEPS
    history = read_history(model / HISTORY)
    steps, losses = history.series("loss")
    assert len(steps) == STEPS
    assert losses[-20:].mean() < 0.7 * losses[:20].mean()
    assert history.evaluations[-1][0] == STEPS
    assert images == 160
