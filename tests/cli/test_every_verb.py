"""Every verb takes contiguous classes, and a detector of two stages.

The same scenes are trained on twice, with the ids 1 to 6 and with ids that have gaps, closed by
`contiguous`. Both models have six classes in the same order, so that they learn and find the same
and differ in nothing but the ids: only ids of the label map are published.
"""

import json

import numpy as np
import pytest

from stillbox.checkpoints.trained import load_trained
from stillbox.cli.main import main
from stillbox.records.label_map import LabelMap, LabelMapItem
from tests.models.two_stage.small import small_words
from tests.small import small_overrides

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")

SHAPES = ("disc", "ring", "square", "triangle", "star", "cross")
IDS = dict(zip((1, 2, 3, 4, 5, 6), (2, 3, 7, 20, 44, 90), strict=True))


def write_map(folder, ids, name="gaps.pbtxt"):
    items = tuple(map(LabelMapItem, ids, SHAPES))
    (folder / name).write_text(LabelMap(items).to_text())
    return folder / name


@pytest.fixture
def closed(scenes, tmp_path_factory):
    """The model of `trained`, but for its label map."""
    folder = tmp_path_factory.mktemp("closed")
    label_map = write_map(folder, IDS.values())
    overrides = small_overrides(
        scenes,
        "train.steps=2",
        "train.checkpoint_every=1",
        "train.optimizer.schedule.learning_rate=0.1",
        "model.postprocessing.nms.score_threshold=0.001",
        "model.class_slots=contiguous",
        f"data.train.label_map={label_map}",
        f"data.evaluation.label_map={label_map}",
    )
    words = [word for override in overrides for word in ("--set", override)]
    assert main(["train", "demo_scenes", "--model-dir", str(folder / "model"), *words]) == 0
    return folder / "model"


def read(path):
    return json.loads(path.read_text())


def test_both_models_are_the_same(trained, closed):
    ours, other = load_trained(trained), load_trained(closed)
    for path, array in ours.params.items():
        np.testing.assert_array_equal(array, other.params[path], path)
    assert ours.slots().ids == tuple(IDS)
    assert other.slots().ids == tuple(IDS.values())


def test_scores_are_the_same_and_detections_have_the_label_map_s_ids(
    stillbox, trained, closed, tmp_path
):
    # A threshold as low as 0 brings boxes of all classes.
    nms = ["--set", "model.postprocessing.nms={score_threshold: 0, max_per_class: 9}"]
    ours, other = tmp_path / "ours", tmp_path / "other"
    for model, output in ((trained, ours), (closed, other)):
        stillbox("evaluate", model, *nms, "--output", output).ended()
    assert read(ours / "metrics.json")["summary"] == read(other / "metrics.json")["summary"]
    assert read(ours / "metrics.json")["per_class"] == read(other / "metrics.json")["per_class"]
    detections = read(ours / "detections.json")
    assert {detection["category_id"] for detection in detections} == set(IDS)
    renamed = [
        detection | {"category_id": IDS[detection["category_id"]]} for detection in detections
    ]
    assert read(other / "detections.json") == renamed


def test_predictions_have_the_label_map_s_ids(stillbox, scenes, trained, closed, tmp_path):
    image = next((scenes / "images" / "val").glob("*.jpg"))
    both = []
    for number, model in enumerate((trained, closed)):
        output = tmp_path / str(number)
        words = ["predict", model, image, "--min-score", 0, "--output", output]
        stillbox(*words).ended()
        both.append(read(output / "predictions.json")[0]["detections"])
    ours, other = both
    assert ours
    assert other == [detection | {"class_id": IDS[detection["class_id"]]} for detection in ours]


def test_the_label_map_of_the_model_names_its_classes(stillbox, refused, closed, tmp_path):
    def against(*ids):
        field = f"data.evaluation.label_map={write_map(tmp_path, ids)}"
        return refused("evaluate", closed, "--set", field)

    # Six classes again, and the sixth is another id: by their order alone they would fit.
    assert "can only find ids 2 to 3, 7, 20, 44, 90, but the label map also has 91 (cross)" in (
        against(2, 3, 7, 20, 44, 91)
    )
    assert "id 2 is 'ring'" in against(3, 2, 7, 20, 44, 90)


def test_weights_of_a_model_directory_bring_their_classes_along(refused, closed, tmp_path, here):
    config = here / "mine.yaml"
    config.write_text((closed / "experiment.yaml").read_text())
    field = f"data.evaluation.label_map={write_map(tmp_path, (3, 2, 7, 20, 44, 90))}"
    message = refused("evaluate", config, "--weights", closed, "--set", field)
    assert "id 2 is 'ring'" in message


def test_the_rule_is_the_run_s(refused, closed, scenes):
    words = [word for override in small_overrides(scenes) for word in ("--set", override)]
    message = refused("train", "demo_scenes", "--model-dir", closed, *words)
    assert "model.class_slots: 'contiguous' -> 'label_map_id'" in message


@pytest.mark.parametrize(
    ("classes", "rule", "sentence"),
    [
        (90, "contiguous", "the label map has 6 classes, the model 90"),
        (6, "label_map_id", "goes up to id 90, the model has 6 classes"),
    ],
)
def test_a_wrong_number_of_classes_is_refused(refused, settings, tmp_path, classes, rule, sentence):
    label_map = write_map(tmp_path, IDS.values())
    fields = settings(
        f"model.num_classes={classes}",
        f"model.class_slots={rule}",
        f"data.train.label_map={label_map}",
    )
    message = refused("train", "demo_scenes", "--model-dir", tmp_path / "model", *fields)
    assert sentence in message
    other = {"contiguous": "label_map_id", "label_map_id": "contiguous"}[rule]
    assert f"set model.class_slots={other}" in message
    assert not (tmp_path / "model").exists()


@pytest.fixture
def words(scenes):
    data = [word for word in small_overrides(scenes) if word.startswith("data.")]
    changes = small_words(*data, "train.steps=2", "train.checkpoint_every=2")
    return [word for change in changes for word in ("--set", change)]


# The parts have fast tests; a minute of a processor.
@pytest.mark.slow
def test_a_model_is_checked_trained_scored_profiled_and_used(stillbox, scenes, words, here):
    stillbox("check", "demo_scenes", *words).ended()
    model, report = here / "model", here / "report"
    out, err = stillbox("train", "demo_scenes", "--model-dir", model, *words).ended()
    assert "proposal_localization" in out + err
    profile = ["--profile", "2,2"]
    stillbox("evaluate", model, "--output", report, *profile).ended()
    assert 0 <= json.loads((report / "metrics.json").read_text())["summary"]["AP"] <= 1
    assert (report / "report.html").is_file()
    (trace,) = report.glob("plugins/profile/*/*.xplane.pb")
    parts = (b"backbone", b"proposals", b"crops", b"box_head")
    assert all(part in trace.read_bytes() for part in parts)
    photos = sorted((scenes / "images/val").iterdir())[:2]
    output = here / "found"
    stillbox("predict", model, *photos, "--output", output, "--min-score", "0.001").ended()
    entries = json.loads((output / "predictions.json").read_text())
    assert all(0 < len(entry["detections"]) <= 10 for entry in entries)
    stillbox("anchors", "demo_scenes", *words).ended()
    saved = here / "weights.safetensors"
    stillbox("weights", "save", model, "--to", saved).ended()
    assert saved.is_file()
