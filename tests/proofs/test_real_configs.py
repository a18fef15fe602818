"""Every real config that is not refused builds its whole detector and takes a step."""

import math

import pytest

from stillbox.cli.main import main
from stillbox.evaluation.history import HISTORY, read_history
from tests.experiment.test_pipeline_config import REFUSED
from tests.shared import SHARED, needs_shared

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
