import dataclasses

import pytest

from stillbox.experiment import schema
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.recipes import recipe_names, recipe_path
from stillbox.experiment.yaml_config import from_yaml, read_yaml, to_yaml
from tests.experiment.sample import SAMPLE
from tests.helpers import refusal

SAMPLED = read_pipeline_config(SAMPLE, "p.config")

EXPERIMENTS = {
    "defaults": schema.Experiment(),
    "sample": SAMPLED.experiment,
    "adam": schema.Experiment(train=schema.Training(optimizer=schema.Adam())),
    "manual": schema.Experiment(
        train=schema.Training(
            optimizer=schema.RmsProp(
                schedule=schema.ManualStepSchedule(
                    schedule=(schema.ScheduleStep(step=1, learning_rate=1e-30),)
                )
            ),
            early_stopping=schema.EarlyStopping(min_delta=1 / 3),
            augmentations=(schema.SsdRandomCrop(operations=()),),
        ),
        model=schema.OneStage(
            resizer=schema.KeepAspectRatioResizer(),
            loss=schema.Loss(
                classification=schema.SoftmaxLoss(), hard_example_miner=schema.HardExampleMiner()
            ),
        ),
    ),
}


# Words that YAML takes for something else, and characters that it must escape.
TEXTS = [
    "",
    " ",
    "no",
    "Null",
    "~",
    "1.5",
    "2024-01-01",
    "a: b",
    "a #b",
    "é",
    "🐿",
    "tab\t",
    "line\nline",
    "- x",
    "'",
    '"',
    "\\",
    "C:\\data\\x",
    "{a}",
    "[b]",
    "*c",
    "&d",
    "!e",
    "%f",
    "@g",
    "true",
    "\x07",
    "\x85",
    "\u2028",
    "gs://bucket/${NAME}",
    "a-?????-of-00010",
]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_written_reads_back_as_the_same_experiment(name):
    experiment = EXPERIMENTS[name]
    text = to_yaml(experiment)
    assert from_yaml(text) == experiment
    assert to_yaml(from_yaml(text)) == text


@pytest.mark.parametrize(
    "number", [0.1, 1 / 3, 1e-8, 5e-324, 1.7976931348623157e308, 1e16, -0.0, 4e-05, 1e22, 123456.0]
)
def test_floats_keep_all_their_digits(number):
    experiment = schema.Experiment(train=schema.Training(gradient_clip_norm=number))
    back = from_yaml(to_yaml(experiment)).train.gradient_clip_norm
    assert back == number
    assert isinstance(back, float)


@pytest.mark.parametrize("text", [*TEXTS, "x" * 300])
def test_any_text_reads_back(text):
    experiment = schema.Experiment(
        name=text, data=schema.Data(train=schema.Records(paths=(text, "plain", text)))
    )
    assert from_yaml(to_yaml(experiment)) == experiment


def test_an_infinite_value_is_never_written():
    experiment = schema.Experiment(train=schema.Training(gradient_clip_norm=float("inf")))
    with pytest.raises(ValueError, match="finite"):
        to_yaml(experiment)


def test_fields_stand_in_the_schemas_order_and_all_of_them():
    lines = [line for line in to_yaml(schema.Experiment()).splitlines() if line[0] != " "]
    assert [line.partition(":")[0] for line in lines] == [
        field.name for field in dataclasses.fields(schema.Experiment)
    ]


def test_comments_say_where_a_value_was_set_and_change_nothing():
    origins = SAMPLED.origins | {"train.steps": "--set train.steps=\n5"}
    text = to_yaml(SAMPLED.experiment, origins)
    assert "  num_classes: 3  # p.config:4:5\n" in text
    assert "  steps: 400  # --set train.steps= 5\n" in text
    assert from_yaml(text) == SAMPLED.experiment


def test_values_know_their_line_and_column():
    reading = read_yaml(
        "train:\n  steps: 5\n  optimizer:\n    {kind: adam, epsilon: 1}\n", "e.yaml"
    )
    assert reading.origins == {
        "train.steps": "e.yaml:2:3",
        "train.optimizer.kind": "e.yaml:4:6",
        "train.optimizer.epsilon": "e.yaml:4:18",
    }


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "train: {}"])
def test_what_is_left_out_has_its_default(text):
    assert from_yaml(text) == schema.Experiment()


def test_a_recipe_is_a_start_that_the_rest_changes():
    text = "recipe: ssd_mobilenet_v1_300x300\ntrain:\n  batch_size: 8\n"
    reading = read_yaml(text, "e.yaml", name="e")
    recipe = from_yaml(recipe_path("ssd_mobilenet_v1_300x300").read_text())
    assert reading.experiment == dataclasses.replace(
        recipe, name="e", train=dataclasses.replace(recipe.train, batch_size=8)
    )
    assert reading.origins["train.batch_size"] == "e.yaml:3:3"
    assert reading.origins["train.steps"].startswith("ssd_mobilenet_v1_300x300.yaml:")


@pytest.mark.parametrize(
    ("text", "where", "message", "fix"),
    [
        ("train:\n  steps: 5\n  steps: 6\n", "e:3:3", "'steps' is given twice", "keep one"),
        ("train:\n  stepps: 5\n", "e:2:3", "train has no field 'stepps'", "'steps'?"),
        ("train:\n  steps: no\n", "e:2:3", "train.steps is a whole number, not False", None),
        ("train:\n  freeze:\n  - 5\n", "e:3:5", "train.freeze.0 is text, not 5", "quotes"),
        ("train: [\n", "e:2:1", "not YAML", None),
        ("a: b: c", "e:1:5", "not YAML: mapping values are not allowed", None),
        ("- 1", "e:1:1", "this is no experiment", "valid here: data, "),
        ("trian: {}", "e:1:1", "no field 'trian'", "did you mean 'train'?"),
        ("just words", "e:1:1", "this is no experiment: it has none of its sections", None),
        ("train: !!python/object/apply:os.getcwd []", "e:1:8", "no meaning", "take it out"),
        ("name: !!python/name:os.getcwd x", "e:1:7", "!!python/name:os.getcwd", "take"),
        ("? [a]\n: 1", "e:1:3", "a name is one word", "name: value"),
        ("recipe: ssd_mobilnet", "e:1:1", "no recipe 'ssd_mobilnet'", "ssd_mobilenet_v1_300x300"),
        ("5: 1", "e:1:1", "this is no experiment", None),
        ("name: a\0", "e:1:8", "not YAML: the control character", "take it out"),
        ("train: {optimizer: {kind: [a]}}", "e:1:21", "kind is one word, not a list", "adam"),
        ("[" * 5000, "e:1:101", "nested deeper than 100 levels", "brackets"),
    ],
)
def test_errors_say_file_line_and_column(text, where, message, fix):
    caught = refusal(from_yaml, text, "e")
    assert caught.where == where
    assert message in caught.what
    assert fix is None or fix in caught.fix


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_read_back_too(name):
    experiment = from_yaml(recipe_path(name).read_text(encoding="utf-8"), name)
    assert from_yaml(to_yaml(experiment)) == experiment
