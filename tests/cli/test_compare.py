"""`stillbox compare` and `stillbox.compare`."""

import json
import shutil

import pytest

import stillbox as package
from stillbox.cli.main import main
from stillbox.records.label_map import LabelMap, LabelMapItem
from tests.small import small_overrides

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")

FEW = ("--samples", "20")


@pytest.fixture
def first_step(trained_once, tmp_path):
    """The model of the fixture `trained` after its first step."""
    folder = tmp_path / "first.stillbox"
    assert main(["pack", str(trained_once), str(folder), "--step", "1"]) == 0
    return folder


def summary(path):
    return json.loads((path / "metrics.json").read_text())["summary"]


def test_numbers_are_the_numbers_of_evaluate_to_the_last_digit(
    stillbox, trained_once, first_step, here
):
    out, err = stillbox("compare", first_step, trained_once, "--json", *FEW).ended()
    compared = json.loads(out)
    for model, place in ((first_step, "first"), (trained_once, "second")):
        stillbox("evaluate", model, "--output", here / place).ended()
        numbers = {row["name"]: row[place] for row in compared["metrics"]}
        assert numbers == summary(here / place)
        classes = json.loads((here / place / "metrics.json").read_text())["per_class"]
        for row in compared["classes"]:
            assert row[place] == classes[row["name"]]["AP"]
    assert compared["image_count"] == 6
    assert compared["samples"] == 20
    assert "scoring" in err
    assert json.loads((here / "comparison/comparison.json").read_text()) == compared
    page = (here / "comparison/comparison.html").read_text()
    assert "Images that differ most" in page
    assert "second: " in page


def test_a_model_equals_itself_and_its_figures_are_measured(stillbox, trained_once, here):
    out, err = stillbox("compare", trained_once, trained_once, "--fail-if-worse=0", *FEW).ended()
    assert "AP50 differs in 0 images of 6" in out
    assert out.splitlines()[-1] == "page: comparison/comparison.html"
    figures = json.loads((here / "comparison/comparison.json").read_text())
    for place in ("first", "second"):
        assert figures[place]["source"] == f"{trained_once}, step 2"
        assert min(figures[place][name] for name in ("bytes", "gflop", "milliseconds")) > 0
    assert all(row["change"] in (None, 0) for row in figures["metrics"])
    assert "worse" not in err


def test_a_gate_of_ci_fails_where_the_second_is_worse(stillbox, trained_once, first_step, here):
    """In one of the two directions the second is worse, and only there the code is 1."""
    codes, changes = [], []
    for pair in ((first_step, trained_once), (trained_once, first_step)):
        answer = stillbox("compare", *pair, "--fail-if-worse", "0", *FEW)
        figures = json.loads((here / "comparison/comparison.json").read_text())
        codes.append(answer.code)
        changes.append(figures["metrics"][0]["change"])
        assert ("worse by more than 0" in answer.err) == bool(answer.code)
    assert changes[0] == -changes[1] != 0
    assert codes == [int(change < 0) for change in changes]


def test_an_export_is_compared_with_its_checkpoint(stillbox, trained_once, here):
    exported = package.export(trained_once, here / "export", format="stablehlo")
    out = stillbox("compare", trained_once, exported.folder, "--samples", "0").ended()[0]
    assert f"second {here}/export (stablehlo): " in out
    figures = json.loads((here / "comparison/comparison.json").read_text())
    assert figures["metrics"][0]["low"] is None
    assert figures["second"]["gflop"] == figures["first"]["gflop"]


def test_other_images_are_scored_where_a_folder_of_them_is_given(
    stillbox, trained_once, scenes, here
):
    """The folder of records has 6 images to score; its training images are not scored."""
    data = shutil.copytree(
        scenes, here / "photos", ignore=shutil.ignore_patterns("*.json", "*.jpg")
    )
    words = ("compare", trained_once, trained_once, "--data", data, *FEW)
    out, err = stillbox(*words).ended()
    assert "holds records" in err
    assert "in 0 images of 6" in out


def test_models_of_other_classes_are_refused_by_name(refused, trained_once, scenes, tmp_path, here):
    names = ("ring", "disc", "square", "triangle", "star", "cross")
    label_map = tmp_path / "other.pbtxt"
    label_map.write_text(LabelMap(tuple(map(LabelMapItem, range(1, 7), names))).to_text())
    fields = ("train.steps=1", "train.checkpoint_every=1", f"data.train.label_map={label_map}")
    words = small_overrides(scenes, *fields, f"data.evaluation.label_map={label_map}")
    words = [word for field in words for word in ("--set", field)]
    assert main(["train", "demo_scenes", "--model-dir", str(tmp_path / "other"), *words]) == 0
    message = refused("compare", trained_once, tmp_path / "other", *FEW)
    assert f"{tmp_path}/other, step 1" in message
    assert "'ring'" in message


def test_python_gets_the_values(trained_once, tmp_path):
    compared = package.compare(trained_once, trained_once, output=tmp_path / "out", samples=0)
    assert compared.comparison.ap.change == 0
    assert not compared.comparison.is_worse(0)
    assert compared.page == tmp_path / "out/comparison.html"
