"""The recipe for blood cells, from VOC XML to AP on the set's own test split."""

import json

import pytest

from stillbox.cli.main import main
from tests.shared import SHARED, needs_shared

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
