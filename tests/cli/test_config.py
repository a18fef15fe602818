"""`stillbox config`: what it prints is a CONFIG, what it refuses has a place and a remedy."""

import pytest

from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.resolve import resolve
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
