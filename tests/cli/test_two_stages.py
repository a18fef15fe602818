"""Every verb of a user takes a detector of two stages."""

import json

import pytest

from tests.models.two_stage.small import small_words
from tests.small import small_overrides

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")


@pytest.fixture
def words(scenes):
    data = [word for word in small_overrides(scenes) if word.startswith("data.")]
    changes = small_words(*data, "train.steps=2", "train.checkpoint_every=2")
    return [word for change in changes for word in ("--set", change)]


# The parts have fast tests; a minute of a processor.
@pytest.mark.slow
def test_a_model_is_checked_trained_scored_profiled_and_used(stillbox, scenes, words, here):
    assert stillbox("check", "demo_scenes", *words).code == 0
    model, report = here / "model", here / "report"
    code, out, err = stillbox("train", "demo_scenes", "--model-dir", model, *words)
    assert code == 0, err
    assert "proposal_localization" in out + err
    profile = ["--profile", "2,2"]
    assert stillbox("evaluate", model, "--output", report, *profile).code == 0
    assert 0 <= json.loads((report / "metrics.json").read_text())["summary"]["AP"] <= 1
    assert (report / "report.html").is_file()
    (summary,) = report.glob("plugins/profile/*/summary.txt")
    places = summary.read_text()
    assert all(part in places for part in ("backbone", "proposals", "crops", "box_head"))
    photos = sorted((scenes / "images/val").iterdir())[:2]
    found = here / "found"
    assert stillbox("predict", model, *photos, "--output", found, "--min-score", "0.001").code == 0
    entries = json.loads((found / "predictions.json").read_text())
    assert all(0 < len(entry["detections"]) <= 10 for entry in entries)
    assert stillbox("anchors", "demo_scenes", *words).code == 0
    saved = here / "weights.safetensors"
    assert stillbox("weights", "save", model, "--to", saved).code == 0
    assert saved.is_file()
