"""`stillbox evaluate` and `stillbox benchmark`."""

import json
import shutil
from argparse import Namespace
from pathlib import Path

import pytest

from stillbox.evaluation.coco import SUMMARY_MEANINGS
from stillbox.evaluation.runtimes import RuntimeRow, RuntimeTable
from stillbox.experiment.schema import Experiment
from stillbox.exporting.benchmarking import runner
from stillbox.exporting.benchmarking.runner import Benchmark
from stillbox.exporting.benchmarking.subjects import BenchmarkSettings
from stillbox.records.scenes import write_scenes

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")


@pytest.fixture
def swapped(scenes, tmp_path):
    """A label map in which two names have changed places."""
    text = (scenes / "label_map.pbtxt").read_text()
    path = tmp_path / "swapped.pbtxt"
    path.write_text(text.replace("disc", "?").replace("ring", "disc").replace("?", "ring"))
    return path


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


def test_a_model_directory_is_scored_and_a_report_is_left(stillbox, trained):
    out, err = stillbox("evaluate", trained).ended()
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:12]] == list(SUMMARY_MEANINGS)
    assert lines[-3].startswith("limits of an image beside the data (6 of 6 images to score on)")
    assert {line.split()[0] for line in lines[14:-3]} == {
        *("disc", "ring", "square", "triangle", "star", "cross")
    }
    figures = trained / "evaluation/report.json"
    best = json.loads(figures.read_text())["threshold"]
    assert lines[-2].startswith(f"best threshold: {best:.3f}, precision " if best else "best thr")
    assert lines[-2].endswith(f"; of each class: {figures} and csv/classes.csv")
    assert lines[-1] == f"report: {trained}/evaluation/report.html"
    assert f"{trained}, step 2: scoring 6 images" in err
    assert err.endswith(f"next: stillbox predict {trained} IMAGES\n")
    assert metrics(trained / "evaluation")["images"] == 6
    assert "<html" in (trained / "evaluation/report.html").read_text()


def test_a_report_of_another_model_is_replaced_where_that_is_asked_for(
    stillbox, refused, trained, here
):
    quick = ("--output", "report", "--set", "evaluation.num_visualizations=0")
    stillbox("evaluate", trained, *quick).ended()
    page = (here / "report/report.html").read_text()
    assert "<title>model</title>" in page  # the run's name
    # Another checkpoint of the same model may be scored in the same place.
    stillbox("evaluate", trained, "--step", "1", *quick).ended()
    other = shutil.copytree(trained, here / "other")
    message = refused("evaluate", other, *quick)
    assert f"the folder holds the report of {trained}, step 1" in message
    assert "add --overwrite" in message
    stillbox("evaluate", other, *quick, "--overwrite").ended()
    assert metrics(here / "report")["weights"] == f"{other}, step 2"


def test_the_report_of_another_packed_model_is_not_replaced_by_default(refused, here, monkeypatch):
    """Packed models have no folder of their own: reports are written into the current one."""
    (here / "new.stillbox").touch()
    model = Namespace(experiment=Experiment(), source="new.stillbox, step 2")
    monkeypatch.setattr("stillbox.api.load_model", lambda source, **settings: model)
    (here / "evaluation").mkdir()
    (here / "evaluation/metrics.json").write_text('{"weights": "old.stillbox, step 2"}')
    assert "old.stillbox" in refused("evaluate", "new.stillbox")


def test_classes_are_left_out_of_the_table_where_that_is_asked_for(stillbox, trained):
    out = stillbox("evaluate", trained, "--set", "evaluation.per_category=false").out
    assert "triangle" not in out


@pytest.mark.parametrize(("step", "scored"), [("best", 2), ("latest", 2), ("1", 1)])
def test_a_checkpoint_can_be_chosen(stillbox, trained, tmp_path, step, scored):
    _, err = stillbox("evaluate", trained, "--step", step, "--output", tmp_path / "out").ended()
    assert f"step {scored}: scoring" in err
    assert metrics(tmp_path / "out")["weights"] == f"{trained}, step {scored}"


def test_all_checkpoints_are_scored_and_compared(stillbox, refused, trained, tmp_path):
    everything = ["evaluate", trained, "--step", "all", "--output", tmp_path / "out"]
    out, err = stillbox(*everything).ended()
    title, *rows = (line.split() for line in out.splitlines())
    assert title == ["step", "AP50", "AP", "AP75"]  # the recipe's best metric stands first
    assert [row[0] for row in rows] == ["1", "2"]
    for row in rows:
        report = metrics(tmp_path / "out" / row[0])
        assert report["weights"] == f"{trained}, step {row[0]}"
        assert row[1:4] == [f"{report['summary'][key]:.5f}" for key in title[1:]]
    assert err.count("; best threshold: ") == 2
    assert f"2 checkpoints scored; results in {tmp_path}/out" in err
    _, again, err = stillbox(*everything)
    assert again == out
    assert f"step 2 is scored already: {tmp_path}/out/2" in err
    message = refused(*everything, "--set", "evaluation.max_examples=5")
    assert f"{tmp_path}/out: the folder holds scores of other settings" in message


def test_all_checkpoints_of_a_folder_that_has_none_are_refused(refused, tmp_path):
    assert "no such model directory" in refused("evaluate", tmp_path / "later", "--step", "all")


@pytest.mark.parametrize("words", [("--overwrite",), ("--runtime", "onnx"), ("--download",)])
def test_options_without_effect_on_all_checkpoints_are_refused(refused, words):
    assert f"{words[0]}: --step all " in refused("evaluate", "run", "--step", "all", *words)


def test_every_image_counts_where_the_last_batch_is_not_full(stillbox, trained, tmp_path):
    """50 images in batches of 16: dropping the last batch, as the original does, would score 48."""
    write_scenes(tmp_path / "fifty", train=1, val=50, seed=2)
    stillbox(
        *("evaluate", trained, "--step", "all", "--output", tmp_path / "out"),
        *("--set", f"data.evaluation.paths={tmp_path}/fifty/val.record-*"),
        *("--set", "evaluation.batch_size=16", "--set", "evaluation.num_visualizations=0"),
    )
    for step in ("1", "2"):
        assert metrics(tmp_path / "out" / step)["images"] == 50
        detections = json.loads((tmp_path / "out" / step / "detections.json").read_text())
        # The model learns so little that it detects something in every image.
        assert len({detection["image_id"] for detection in detections}) == 50


def test_the_weights_of_a_model_directory_score_as_the_directory_does(stillbox, trained, here):
    stillbox("evaluate", trained)
    config = shutil.copy(trained / "experiment.yaml", here / "mine.yaml")
    out, err = stillbox("evaluate", config, "--weights", trained).ended()
    assert "0 missing" in err or "missing         0" in err
    assert out.splitlines()[-1] == "report: evaluation/report.html"
    assert metrics(here / "evaluation")["summary"] == metrics(trained / "evaluation")["summary"]


def test_other_metrics_can_be_asked_for(stillbox, trained, tmp_path):
    words = ["--set", "evaluation.metrics=[coco, pascal_voc]", "--output", tmp_path / "out"]
    lines = stillbox("evaluate", trained, *words).out.splitlines()
    assert [line.split()[0] for line in lines[:13]] == [*SUMMARY_MEANINGS, "VOC_mAP"]
    assert lines[14].split() == ["class", "AP", "AP50", "VOC_AP", "boxes"]
    assert "VOC_mAP" in metrics(tmp_path / "out")["summary"]


def test_only_the_first_images_are_scored_and_a_warning_says_so(stillbox, trained, tmp_path):
    words = ["--set", "evaluation.max_examples=5", "--output", tmp_path / "out"]
    err = stillbox("evaluate", trained, *words).err
    assert "warning: scored: the first 5 of 6 images (evaluation.max_examples)" in err
    assert metrics(tmp_path / "out")["images"] == 5


def test_all_numbers_of_every_class_can_be_asked_for(stillbox, trained, tmp_path):
    words = ["--set", "evaluation.all_metrics_per_category=true", "--output", tmp_path / "out"]
    lines = stillbox("evaluate", trained, *words).out.splitlines()
    assert lines[13].split() == ["class", *SUMMARY_MEANINGS, "boxes"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--set", "evaluation.metrics=[pascal_voc]"], "best_metric AP50 belongs to coco"),
        (["--set", "evaluation.metrics=[voc]"], "one of coco, pascal_voc, weighted_"),
        (["--set", "evaluation.truth_color=blak"], "did you mean 'black'"),
        (["--step", "99"], "there is no checkpoint 99\n  fix: finished checkpoints: 1, 2"),
        (["--step", "newest"], "--step: 'newest' names no checkpoint"),
        (["--set", "model.num_classes=7"], "the weights do not fit the model"),
        (["--set", "model.neck.extra_depths=[64]"], "anchors for 2 feature maps"),
        (["--set", "data.evaluation.paths=nowhere/*"], "nowhere/*"),
        (["--set", "data.evaluation.paths=[]"], "paths: the experiment names no records"),
        (["--set", "data.evaluation.label_map="], "no label map is given"),
        (["--set", "evaluation.batchsize=2"], "did you mean 'batch_size'?"),
    ],
)
def test_unusable_models_are_refused(refused, trained, words, expected):
    assert expected in refused("evaluate", trained, *words)


def test_label_maps_of_other_classes_are_refused(refused, trained, swapped, tmp_path):
    message = refused("evaluate", trained, "--set", f"data.evaluation.label_map={swapped}")
    assert "label map, model and annotations disagree" in message
    assert "id 1 is 'ring'" in message
    (tmp_path / "cats.pbtxt").write_text("item { id: 1 name: 'cat' }")
    words = ["--set", f"data.evaluation.label_map={tmp_path}/cats.pbtxt"]
    assert "has none of the classes" in refused("evaluate", trained, *words)


def test_weights_that_are_absent_or_of_another_model_are_refused(
    refused, trained, settings, tmp_path
):
    words = settings("model.backbone.depth_multiplier=0.25")
    message = refused("evaluate", "demo_scenes", *words, "--weights", trained)
    assert "wanted arrays" in message
    assert "shapes differ (" in message
    assert "add --weights FILE" in refused("evaluate", "demo_scenes")
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday/photo.jpg").write_text("")
    message = refused("evaluate", tmp_path / "holiday")
    assert "this is not a model directory" in message
    assert "photo.jpg" in message


def test_damaged_and_incomplete_checkpoints_are_named(refused, trained):
    path = trained / "checkpoints/2/ema.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert f"{path}: the file is damaged" in refused("evaluate", trained)
    (trained / "checkpoints/2/checkpoint.json").unlink()
    message = refused("evaluate", trained)
    assert f"{trained}/checkpoints/2: this is not a checkpoint of stillbox" in message


def test_an_output_folder_that_cannot_be_made_is_refused_before_scoring(refused, trained):
    (trained / "file").write_text("")
    message = refused("evaluate", trained, "--output", trained / "file/report")
    assert "Not a directory" in message
    assert "scoring" not in message


def test_the_moving_average_is_scored_unless_it_is_not_wanted(stillbox, trained, tmp_path):
    (trained / "checkpoints/2/ema.npz").unlink()
    assert stillbox("evaluate", trained, "--output", tmp_path / "a").code == 2
    words = ["--set", "evaluation.use_ema=false", "--output", tmp_path / "b"]
    stillbox("evaluate", trained, *words).ended()


ROW = RuntimeRow(name="checkpoint", runtime="jax 0.10.0", p50_ms=13.0)
ABSENT = RuntimeRow(name="onnx", runtime="openvino", state="not installed", message="pip install x")
FAILED = RuntimeRow(name="onnx", runtime="onnxruntime", state="failed", message="it was killed")


@pytest.fixture
def asked(monkeypatch):
    """What a command line asks for; nothing is measured. Its rows and its end can be set."""
    calls = {"rows": (ROW,), "interrupted": False}

    def benchmark(source, **arguments):
        calls.update(arguments, source=source)
        table = RuntimeTable(model="owls", rows=calls["rows"])
        return Benchmark(table, Path("out/benchmark.html"), calls["interrupted"])

    monkeypatch.setattr(runner, "benchmark", benchmark)
    return calls


def test_all_options_reach_the_benchmark(stillbox, trained, asked):
    out, err = stillbox(
        *("benchmark", trained, "--step", "2", "--set", "evaluation.metrics=[pascal_voc]"),
        *("--formats", "onnx,tflite_int8", "--exports", "kept", "--image-size", "48,80"),
        *("--images", "a.jpg", "b.jpg", "--limit", "9", "--no-ap", "--min-score", "0.5"),
        *("--warmup", "3", "--repeats", "50", "--threads", "1", "--output", "out"),
    ).ended()
    assert asked["settings"] == BenchmarkSettings(
        formats=("onnx", "tflite_int8"),
        limit=9,
        scored=False,
        min_score=0.5,
        warmup=3,
        repeats=50,
        threads=1,
        image_size=(48, 80),
    )
    assert (asked["source"], asked["step"]) == (str(trained), 2)
    assert asked["overrides"] == {"evaluation.metrics": "[pascal_voc]"}
    assert asked["images"] == [Path("a.jpg"), Path("b.jpg")]
    assert (asked["exports"], asked["output"]) == (Path("kept"), Path("out"))
    assert out.startswith("owls\n")
    assert "page: out/benchmark.html" in err


def test_the_defaults_are_those_of_the_function_and_json_is_all_of_standard_output(
    stillbox, trained, asked
):
    _, err = stillbox("benchmark", trained).ended()
    assert asked["settings"] == BenchmarkSettings()
    # The report of the next command shows the table.
    assert err.endswith(f"next: stillbox evaluate {trained}\n")
    out, _ = stillbox("benchmark", trained, "--json").ended()
    assert json.loads(out)["rows"][0]["p50_ms"] == 13.0


@pytest.mark.parametrize(
    "rows, interrupted, code",
    [((ROW, ABSENT), False, 0), ((ROW, FAILED), False, 1), ((ROW,), True, 130)],
    ids=["absent", "failed", "interrupted"],
)
def test_the_exit_code(stillbox, trained, asked, rows, interrupted, code):
    asked.update(rows=rows, interrupted=interrupted)
    answer = stillbox("benchmark", trained)
    assert answer.code == code
    assert "checkpoint" in answer.out


@pytest.mark.parametrize(
    "words, message",
    [
        (("--formats", "onxn"), "did you mean 'onnx'?"),
        (("--image-size", "640"), "'640' is no size"),
        (("--repeats", "0"), "--repeats: 0 is out of range"),
        (("--images", "absent.jpg"), "absent.jpg"),
    ],
    ids=["format", "size", "repeats", "image"],
)
def test_wrong_words_are_refused(refused, trained, words, message):
    assert message in refused("benchmark", trained, *words)


def test_a_config_needs_weights(refused):
    assert "weights" in refused("benchmark", "demo_scenes")
