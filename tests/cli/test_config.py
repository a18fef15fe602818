"""`stillbox config` and `stillbox recipes`.

What `config` prints is a CONFIG, what it refuses has a place and a remedy; `recipes` prints what
the head of each recipe's file says.
"""

import json
import re

import pytest

from stillbox.checking.memory_estimate import estimate, sizes_of
from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.recipes import read_header, recipe_names, recipe_path
from stillbox.experiment.resolve import resolve
from stillbox.models.build import abstract_detector
from tests.experiment.sample import SAMPLE


@pytest.mark.parametrize("recipe", recipe_names())
def test_the_yaml_is_itself_a_config_of_the_same_experiment(stillbox, here, recipe):
    printed = stillbox("config", recipe, "--set", "train.batch_size=7").out
    (here / "y.yaml").write_text(printed)
    first, second = resolve(recipe, ["train.batch_size=7"]), resolve("y.yaml")
    assert first.experiment == second.experiment


def test_a_pipeline_config_becomes_the_same_experiment_in_yaml(stillbox, here):
    (here / "pipeline.config").write_text(SAMPLE)
    (here / "y.yaml").write_text(stillbox("config", "pipeline.config").out)
    assert resolve("pipeline.config").experiment == resolve("y.yaml").experiment


def test_a_value_says_where_it_was_set(stillbox, here):
    (here / "mine.yaml").write_text("recipe: demo_scenes\ntrain:\n  steps: 9\n")
    out = stillbox("config", "mine.yaml", "--set", "train.seed=3").out
    assert "  steps: 9  # mine.yaml:3:3\n" in out
    assert "  seed: 3  # --set train.seed=3\n" in out


def test_warnings_and_notes_go_to_standard_error(stillbox, here):
    (here / "p.config").write_text(SAMPLE)
    _, out, err = stillbox("config", "p.config", "--set", "data.train.paths=a-00000-of-00010")
    assert "warning: --set data.train.paths=a-00000-of-00010: 1 of 10 shards" in err
    assert "note: p.config:" in err
    assert "warning" not in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["demo_scene"],
            ["neither a file nor a recipe 'demo_scene'", "did you mean 'demo_scenes'"],
        ),
        (["nowhere/x.yaml"], ["there is no file nowhere/x.yaml"]),
        (["."], ["is a folder", "demo_scenes"]),
        (
            ["demo_scenes", "--set", "train.batchsize=8"],
            [
                "--set train.batchsize=8: train has no field 'batchsize'",
                "did you mean 'batch_size'",
            ],
        ),
        (
            ["demo_scenes", "--set", "batch_size=8"],
            ["did you mean 'train.batch_size' or 'evaluation.batch_size'?"],
        ),
        (
            ["demo_scenes", "--set", "train.batch_size=many"],
            ["train.batch_size is a whole number, not 'many'"],
        ),
        (["demo_scenes", "--set", "train.batch_size"], ["an override is a path, an equals sign"]),
        (
            ["demo_scenes", "--set", "evaluation.best_metric=AP5"],
            ["best_metric is one of AP, AP50, AP75", "'AP50'"],
        ),
        (["demo_scenes", "--set", "train.log_every=0"], ["train.log_every is 0", "at least 1"]),
        (["demo_scenes", "--set", "train.keep_checkpoints=0"], ["keep_checkpoints is 0"]),
        (["demo_scenes", "--set", "evaluation.metrics=[]"], ["no metrics", "for example [coco]"]),
        (["demo_scenes", "--set", "evaluation.metrics=[voc]"], ["is one of coco"]),
    ],
)
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
