"""A model directory that version 0.1.0 wrote before `model.kind` existed still works.

`before_the_seam` was trained 300 steps on the ten scenes of `train.record`; `expected.json` has
what the same version found in a synthetic image and the losses of its next two steps.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import stillbox
from stillbox.cli.main import main
from stillbox.experiment.yaml_config import from_yaml
from tests.small import EVERY_DETECTION

OLD = Path(__file__).with_name("before_the_seam")
EXPECTED = json.loads((OLD / "expected.json").read_text())


def test_its_experiment_is_one_stage():
    text = (OLD / "experiment.yaml").read_text()
    assert "one_stage" not in text
    assert from_yaml(text).model.kind == "one_stage"


def test_it_finds_what_it_found():
    image = (np.indices((48, 64)).sum(0)[..., None] * np.array([1, 2, 3]) % 256).astype(np.uint8)
    (found,) = stillbox.load(OLD).predict([image], **EVERY_DETECTION)
    count = len(EXPECTED["scores"])
    np.testing.assert_allclose(found.scores[:count], EXPECTED["scores"], atol=1e-6)
    np.testing.assert_allclose(found.boxes[:count], EXPECTED["boxes"], atol=1e-4)


def test_its_training_goes_on_with_the_same_losses(tmp_path):
    directory = shutil.copytree(OLD, tmp_path / "model")
    words = [f"--set=data.train.paths={OLD}/train.record"]
    words += [f"--set=data.train.label_map={OLD}/label_map.pbtxt"]
    words += ["--set=data.evaluation.paths=[]", "--set=train.steps=302"]
    config = str(OLD / "experiment.yaml")
    assert main(["train", config, "--model-dir", str(directory), *words]) == 0
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    losses = {str(line["step"]): line["loss"] for line in lines if "loss" in line}
    assert losses == pytest.approx(EXPECTED["loss"], rel=1e-6)
