"""`stillbox check` and `stillbox config`."""

import json
import re
from dataclasses import replace

import jax
import pytest

from stillbox.checking import doctor
from stillbox.checking.ahead_of_time import report
from stillbox.checking.ahead_of_time.compiling import Memory, StepCheck
from stillbox.checking.memory_estimate import estimate, sizes_of
from stillbox.cli.overrides import changes_of
from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.recipes import read_header, recipe_names, recipe_path
from stillbox.experiment.resolve import resolve
from stillbox.findings import Finding
from stillbox.models.build import abstract_detector
from tests.experiment.sample import SAMPLE


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")


def test_a_config_that_can_be_used_ends_with_0(stillbox):
    code, out, err = stillbox("check", "ssd_mobilenet_v1_300x300")
    assert (code, err) == (0, "")
    assert "warning data.train.paths: no records to train on" in out
    assert "0 errors, " in out


def test_strict_ends_with_1_where_there_are_warnings(stillbox, settings):
    assert stillbox("check", "ssd_mobilenet_v1_300x300", "--strict").code == 1
    # The small experiment trains four steps, which no average survives.
    code, out, _ = stillbox("check", "demo_scenes", "--strict", *settings())
    assert code == 1
    assert "batch norm with a decay of" in out
    quiet = settings("train.steps=850", "train.batch_size=32")
    code, out, _ = stillbox("check", "demo_scenes", "--strict", *quiet)
    assert (code, "0 errors, 0 warnings" in out) == (0, True), out


def test_a_refused_config_ends_with_2(stillbox):
    code, out, err = stillbox("check", "demo_scenes", "--set", "train.batch_size=0")
    assert (code, err) == (2, "")
    assert "error --set train.batch_size=0: train.batch_size is 0" in out
    code, out, _ = stillbox("check", "demo_scene")
    assert code == 2
    assert "did you mean 'demo_scenes'?" in out


def test_json_holds_all_findings(stillbox):
    code, out, _ = stillbox("check", "demo_scenes", "--json", "--set", "train.batch_size=0")
    content = json.loads(out)
    assert code == 2
    assert content["errors"] == 1
    assert content["findings"][0] == {
        "severity": "error",
        "path": "train.batch_size",
        "origin": "train.batch_size=0",
        "what": "train.batch_size is 0",
        "fix": "give a value of at least 1",
    }


def test_all_records_are_read_or_none(stillbox, settings, here):
    words = ["check", "demo_scenes", *settings(), "--notes"]
    assert "10 of 10 records checked" in stillbox(*words).out
    assert "records checked" not in stillbox(*words, "--no-records").out
    missing = ["--set", "data.train.paths=nowhere.record"]
    stillbox(*words, *missing).ended()
    out, _ = stillbox(*words, *missing, "--records").ended(2)
    assert "nowhere.record: there is no such file" in out


def test_a_target_that_does_not_exist_is_said_first(refused):
    said = refused("check", "demo_scenes", "--target", "v5e:3x3")
    assert "'v5e:3x3' is no usual slice of TPU v5e" in said
    assert "add --target v5e:2x4" in refused("check", "demo_scenes", "--find-batch")


@pytest.fixture
def compiler(monkeypatch):
    """Answers in place of the compiler of `cpu`; what it is asked for is in the list."""
    asked = []

    def check_step(experiment, target, step, say):
        say(f"{step}: compiling")
        images = {"train": experiment.train.batch_size, "evaluate": 20, "predict": 1}[step]
        asked.append((step, images))
        memory = Memory(
            parameters=1000, optimizer=1000, average=0, batch=5000 * images, results=0,
            temporaries=5000 * images, code=0, usable=1_000_000,
        )  # fmt: skip
        check = StepCheck(step=step, images=images, devices=1, memory=memory, flops=5e9)
        if memory.left < 0:
            failure = Finding("error", "train.batch_size", "too large", "lower it")
            return replace(check, failure=failure, needed=memory.total)
        return check

    monkeypatch.setattr(report, "check_step", check_step)
    return asked


def test_steps_are_compiled_for_a_target(stillbox, compiler):
    out, err = stillbox("check", "demo_scenes", "--no-records", "--target", "cpu").ended()
    assert [step for step, _ in compiler] == ["train", "evaluate", "predict"]
    assert err.splitlines() == ["train: compiling", "evaluate: compiling", "predict: compiling"]
    assert "compiled train step, 32 images on 1 device" in out
    assert "memory of each device: 314 KiB of 977 KiB, 662 KiB left" in out


def test_a_program_that_does_not_fit_ends_with_2(stillbox, compiler):
    words = ["check", "demo_scenes", "--no-records", "--target", "cpu"]
    code, out, _ = stillbox(*words, "--set", "train.batch_size=128")
    assert code == 2
    sentence = "train step, 128 images on 1 device: too large"
    assert f"error --set train.batch_size=128: {sentence}\n    fix: lower it\n" in out
    assert "1 error, " in out
    assert "refused train step, 128 images on 1 device" in out
    content = json.loads(stillbox(*words, "--set", "train.batch_size=128", "--json").out)
    assert (content["errors"], content["findings"][0]["what"]) == (1, sentence)
    assert content["target"]["steps"][0]["refused"] == "too large"
    # With the largest batch that fits there is nothing to refuse.
    code, out, _ = stillbox(*words, "--set", "train.batch_size=128", "--find-batch", "--json")
    target = json.loads(out)["target"]
    assert (code, target["fits"]) == (0, True)
    # 998,000 are left for images of 10,000 each.
    assert 94 <= target["largest_batch"] <= 99
    assert target["steps"][0]["images"] == target["largest_batch"]
    assert target["trials"][0]["fits"] is False


def test_a_refused_config_is_not_compiled(stillbox, compiler):
    words = ["--set", "train.batch_size=0"]
    assert stillbox("check", "demo_scenes", "--target", "cpu", *words).code == 2
    assert compiler == []


def test_the_training_records_are_looked_at_and_a_picture_is_left(stillbox, settings, here):
    out, _ = stillbox("anchors", "demo_scenes", *settings()).ended()
    assert "recall .5" in out
    assert "picture: anchors/anchors.png" in out
    assert (here / "anchors/anchors.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((here / "anchors/anchors.json").read_text())["records"] == 10


def test_other_records_take_the_place_of_the_configs(stillbox, settings, scenes, here):
    words = ["--label-map", scenes / "label_map.pbtxt", "--output", "out", "--json"]
    unnamed = settings("data.train.paths=[]", "data.train.label_map=")
    _, out, _ = stillbox("anchors", "demo_scenes", f"{scenes}/val.record*", *words, *unnamed)
    assert json.loads(out)["records"] == 6
    assert (here / "out/anchors.png").is_file()


def test_a_limit_is_said_and_unusable_arguments_are_refused(stillbox, settings, here, refused):
    out = stillbox("anchors", "demo_scenes", *settings(), "--limit", "4").out
    assert "4 of 10 records read." in out
    assert "there are no records" in refused("anchors", "ssd_mobilenet_v1_300x300")
    assert "a limit is not negative" in refused(
        "anchors", "demo_scenes", *settings(), "--limit", "-1"
    )


def test_doctor_ends_with_0_or_1_and_says_what_there_is(stillbox, monkeypatch):
    monkeypatch.setattr(doctor, "bad_pairs", lambda versions: [])
    code, out, err = stillbox("doctor")
    assert (code, err) == (0, "")
    assert f"jax {jax.__version__}" in out
    assert "devices: 1 x cpu" in out
    assert "GiB on the host" in out
    assert out.endswith("=> nothing wrong was found\n")
    monkeypatch.setattr(doctor, "bad_pairs", lambda versions: ["these two quarrel"])
    code, out, _ = stillbox("doctor")
    assert code == 1
    assert out.endswith("=> these two quarrel\n")


def test_a_cache_that_others_can_fill_is_a_finding(stillbox, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "bad_pairs", lambda versions: [])
    monkeypatch.setenv("STILLBOX_CACHE", str(tmp_path))
    (tmp_path / "xla").mkdir()
    (tmp_path / "xla").chmod(0o777)
    out, _ = stillbox("doctor").ended(1)
    assert f"=> {tmp_path}/xla: others can write into the folder: remove it" in out


@pytest.mark.parametrize("recipe", recipe_names())
def test_the_yaml_is_itself_a_config_of_the_same_experiment(stillbox, here, recipe):
    printed = stillbox("config", recipe, "--set", "train.batch_size=7").out
    (here / "y.yaml").write_text(printed)
    first, second = resolve(recipe, changes_of(["train.batch_size=7"])), resolve("y.yaml")
    assert first.experiment == second.experiment


def test_a_pipeline_config_becomes_the_same_experiment_in_yaml(stillbox, here):
    (here / "pipeline.config").write_text(SAMPLE)
    (here / "y.yaml").write_text(stillbox("config", "pipeline.config").out)
    assert resolve("pipeline.config").experiment == resolve("y.yaml").experiment


def test_values_say_where_they_were_set_and_warnings_go_to_standard_error(stillbox, here):
    (here / "mine.yaml").write_text("recipe: demo_scenes\ntrain:\n  steps: 9\n")
    out = stillbox("config", "mine.yaml", "--set", "train.seed=3").out
    assert "  steps: 9  # mine.yaml:3:3\n" in out
    assert "  seed: 3  # --set train.seed=3\n" in out
    (here / "p.config").write_text(SAMPLE)
    _, out, err = stillbox("config", "p.config", "--set", "data.train.paths=a-00000-of-00010")
    assert "warning: --set data.train.paths=a-00000-of-00010: 1 of 10 shards" in err
    assert "note: p.config:" in err
    assert "warning" not in out


@pytest.mark.parametrize(("words", "expected"), [
    (["demo_scene"],
     ["neither a file nor a recipe 'demo_scene'", "did you mean 'demo_scenes'"]),
    (["nowhere/x.yaml"], ["there is no file nowhere/x.yaml"]),
    (["."], ["is a folder", "demo_scenes"]),
    (["demo_scenes", "--set", "train.batchsize=8"],
     ["--set train.batchsize=8: train has no field 'batchsize'", "did you mean 'batch_size'"]),
    (["demo_scenes", "--set", "batch_size=8"],
     ["did you mean 'train.batch_size' or 'evaluation.batch_size'?"]),
    (["demo_scenes", "--set", "train.batch_size=many"],
     ["train.batch_size is a whole number, not 'many'"]),
    (["demo_scenes", "--set", "train.batch_size"], ["an override is a path, an equals sign"]),
    (["demo_scenes", "--set", "evaluation.best_metric=AP5"],
     ["best_metric is one of AP, AP50, AP75", "'AP50'"]),
    (["demo_scenes", "--set", "train.log_every=0"], ["train.log_every is 0", "at least 1"]),
    (["demo_scenes", "--set", "train.keep_checkpoints=0"], ["keep_checkpoints is 0"]),
    (["demo_scenes", "--set", "evaluation.metrics=[]"], ["no metrics", "for example [coco]"]),
    (["demo_scenes", "--set", "evaluation.metrics=[voc]"], ["is one of coco"]),
])  # fmt: skip
def test_an_invalid_config_is_refused(refused, words, expected):
    message = refused("config", *words)
    for text in expected:
        assert text in message


@pytest.mark.parametrize(
    ("name", "text", "place", "expected"),
    [
        ("a.yaml", "train:\n  batch_sise: 3\n", "a.yaml:2:3", "did you mean 'batch_size'?"),
        ("a.yaml", "train: {steps: [}\n", "a.yaml:1:17", "not YAML"),
        ("a.config", "model {\n  sdd {\n  }\n}\n", "a.config:2:3", "'ssd'"),
        ("a.config", SAMPLE.replace("RELU_6", "RELU_7", 1), "a.config:11:21", "RELU_6"),
        ("a.config", SAMPLE + "}", f"a.config:{SAMPLE.count(chr(10)) + 1}:1", ""),
    ],
)
def test_a_file_that_is_refused_is_pointed_into(refused, here, name, text, place, expected):
    (here / name).write_text(text)
    message = refused("config", name)
    assert message.startswith(f"stillbox config: {place}: ")
    assert expected in message


def test_all_recipes_are_listed_with_all_columns(stillbox):
    code, out, err = stillbox("recipes")
    assert (code, err) == (0, "")
    assert all(name in out for name in recipe_names())
    assert max(map(len, out.splitlines())) <= 80
    coco, drawn, bccd = (part.partition("AP on ")[2] for part in out.split("recipe   ")[1:])
    assert coco.startswith("COCO\n")
    assert "retinanet_nasfpn" in coco
    assert "demo_scenes" not in coco
    assert drawn.startswith("drawn scenes\ndemo_scenes")
    assert bccd.startswith("BCCD\ngfl_mobile")
    assert "ssd_mobilenet_v1_bccd" in bccd
    content = json.loads(stillbox("recipes", "--json").out)
    assert [row["name"] for row in content] == list(recipe_names())
    fpn = next(row for row in content if row["name"] == "ssd_mobilenet_v1_fpn_640x640")
    assert (fpn["ap"], fpn["input"], fpn["hardware"]) == ("29.7", [640, 640], "8 TPU cores")


@pytest.mark.parametrize("name", recipe_names())
def test_no_header_lacks_an_entry(name):
    header = read_header(name)
    assert header.about
    assert header.batch == resolve(name).experiment.train.batch_size
    assert float(header.ap.split(" to ")[0]) > 10


@pytest.mark.parametrize("name", recipe_names())
def test_weights_of_a_command_can_be_had_by_name_or_are_explained(name):
    text = recipe_path(name).read_text()
    for weights in re.findall(r"^#.* train\.fine_tune\.checkpoint=(\S+)", text, re.MULTILINE):
        known = known_weights().get(weights)
        explained = weights == "resnet_v1_50_v2.ckpt" and "format V1, which is refused" in text
        assert explained or (known and name in known.recipes)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "demo_scenes" else pytest.mark.slow)
        for name in recipe_names()
    ],
)
def test_sizes_in_the_headers_are_those_of_the_models(name):
    header, experiment = read_header(name), resolve(name).experiment
    params = abstract_detector(experiment.model, "float32").params
    assert header.parameters == round(sum(array.size for array in params.values()) / 1e6, 1)
    needs = estimate(experiment, sizes_of(experiment.model, experiment.train), "gpu").device
    assert header.memory == pytest.approx((needs.low + needs.high) / 2 / 2**30, rel=0.15)
