"""Experiments in YAML: written, read back, and stored in model directories."""

import dataclasses
import json
import re
import typing

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.recipes import recipe_names, recipe_path
from stillbox.experiment.resolve import changed, read_config, resolve
from stillbox.experiment.schema import Experiment
from stillbox.experiment.schema.ranges import Outside
from stillbox.experiment.values import choices, field_marks, field_types
from stillbox.experiment.yaml_config import (
    from_stored,
    from_yaml,
    place_paths,
    read_yaml,
    store_paths,
    to_yaml,
    without_own_paths,
)
from stillbox.references import Setting, worded
from tests.experiment.sample import SAMPLE
from tests.helpers import refusal, refused

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
    origins = SAMPLED.origins | {"train.steps": "train.steps=\n5"}
    text = to_yaml(SAMPLED.experiment, origins)
    assert "  num_classes: 3  # p.config:4:5\n" in text
    assert "  steps: 400  # train.steps= 5\n" in text
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


# Texts that no program takes for a file, a service or a command.
WORDS = {
    "Experiment.name": "a heading",
    "Evaluation.truth_color": "a colour; a rule",
    "FineTune.skip": "compared with names of arrays",
    "Training.freeze": "compared with names of arrays",
    "Training.trainable": "compared with names of arrays",
    "ParameterGroup.pattern": "compared with paths of parameters",
}
LAYERS = {"last_layer", "tap", "taps"}
RESOURCE = re.compile(
    "path|file|folder|director|url|host|address|_port|command|import|worker|thread|processes"
    "|prefetch|cache|memory|gib|bytes|timeout|seconds|logger"
)
MACHINE = {
    "data.workers": 4096,
    "data.processes": 256,
    "data.prefetch": 10**9,
    "evaluation.pictures_directory": "/home",
    "train.loggers": ["wandb"],
}


def sections(hint=Experiment, path=""):
    """Yields all classes of the schema with a place of each."""
    for member in choices(hint):
        if typing.get_origin(member) is tuple:
            yield from sections(typing.get_args(member)[0], f"{path}.0")
        elif dataclasses.is_dataclass(member):
            yield path.strip("."), member
            for name, inner in field_types(member).items():
                yield from sections(inner, f"{path}.{name}")


def is_text(hint):
    return hint is str or str in typing.get_args(hint)


SECTIONS = list(sections())


def test_every_field_that_leads_out_of_an_experiment_is_marked():
    assert len({cls for _, cls in SECTIONS}) > 100
    missing = [
        f"{cls.__name__}.{name}"
        for _, cls in SECTIONS
        for name, hint in field_types(cls).items()
        if (is_text(hint) or RESOURCE.search(name)) and name not in field_marks(cls, Outside)
        if name not in LAYERS and f"{cls.__name__}.{name}" not in WORDS
    ]
    assert not missing, "mark it in the schema as a path or of the machine (`ranges.Outside`)"


def test_the_fields_of_the_machine_are_these():
    fields = {
        f"{path}.{name}"
        for path, cls in SECTIONS
        for name, mark in field_marks(cls, Outside).items()
        if not mark.stored
    }
    assert fields == set(MACHINE)


def spelt(path, value):
    section, name = path.split(".")
    return f"{section}: {{{name}: {json.dumps(value)}}}\n"


@pytest.mark.parametrize("path", MACHINE)
def test_a_stored_experiment_sets_nothing_of_the_machine(path):
    said = []
    text = "name: mine\n" + spelt(path, MACHINE[path])
    assert from_yaml(text) != Experiment(name="mine")
    stored = from_stored(text, "x.yaml", said.append)
    assert stored == Experiment(name="mine")
    assert len(said) == 1
    assert said[0].startswith("note: x.yaml:1:1: ")
    assert f"stored experiment: {path}; set" in said[0]
    assert "/home" not in said[0]


def test_settings_of_the_machine_come_from_the_command_line_alone():
    said = []
    from_stored("data: {workers: null, prefetch: 2}\n", "x.yaml", said.append)
    assert not said
    stored = from_stored("data: {workers: 3}\n", "x.yaml")
    assert stored.data.workers is None
    assert changed(stored, changes_of(["data.workers=2"])).data.workers == 2


OLD = "name: mine\ndevices: {program_cache: /home, program_cache_gib: 1.0e-9, replicas: 4}\n"


@pytest.mark.parametrize("read", ["stored", "config"])
def test_fields_of_an_older_version_are_passed_over_by_name(read, tmp_path):
    said = []
    if read == "stored":
        experiment = from_stored(OLD, "x.yaml", said.append)
    else:
        (tmp_path / "x.yaml").write_text(OLD)
        resolved = resolve(tmp_path / "x.yaml")
        experiment, said = resolved.experiment, list(resolved.notes)
    assert experiment.devices.replicas == 4
    first, second = said
    assert "x.yaml:2:11: devices.program_cache has no effect any more: STILLBOX_CACHE=" in first
    assert "devices.program_cache_gib has no effect any more: STILLBOX_CACHE_GIB=" in second
    assert not [path for path in read_yaml(OLD, "x").origins if "program_cache" in path]


def test_their_defaults_which_every_older_experiment_spells_leave_no_note():
    text = "devices: {program_cache: null, program_cache_gib: 10.0}\n"
    assert not read_yaml(text, "x").notes


@pytest.mark.parametrize(
    ("field", "variable"),
    [("program_cache=/home", "STILLBOX_CACHE"), ("program_cache_gib=1", "STILLBOX_CACHE_GIB")],
)
def test_an_override_of_such_a_field_says_what_to_use(field, variable):
    for override in (f"devices.{field}", f"devices={{{field.replace('=', ': ')}}}"):
        with pytest.raises(UserError, match="there is no field devices") as caught:
            changed(Experiment(), changes_of([override]))
        assert caught.value.about == Setting.parse(override)
        assert worded(caught.value.fix).startswith(f"{variable}=")


def test_no_weights_to_start_from_can_be_said(tmp_path):
    tuned = changed(Experiment(), {"train.fine_tune.checkpoint": "model.ckpt"})
    for word in ("", "null", "~"):
        experiment = changed(tuned, changes_of([f"train.fine_tune.checkpoint={word}"]))
        assert experiment.train.fine_tune.checkpoint == ""
    assert from_yaml("train: {fine_tune: {checkpoint: null}}") == Experiment()
    quoted = changed(tuned, changes_of(["train.fine_tune.checkpoint=./null"]))
    assert quoted.train.fine_tune.checkpoint == "./null"
    with refused(Setting("train.fine_tune", "null")) as caught:
        changed(tuned, changes_of(["train.fine_tune=null"]))
    assert worded(caught.value.fix) == "train.fine_tune.checkpoint= takes none"


@pytest.mark.parametrize("place", ["/tmp/x", "../x", "a/../../x", "a\0b", "a\nb"])
def test_pictures_lead_out_of_no_folder(place):
    with refused(Setting("evaluation.pictures_directory", place)):
        changed(Experiment(), {"evaluation.pictures_directory": place})


def experiment_in(directory, *more):
    return read_config(
        "demo_scenes",
        changes_of(
            [
                f"data.train.paths=[{directory}/data/a.record, elsewhere/b.record]",
                f"data.train.label_map={directory}/data/labels.pbtxt",
                "data.evaluation.label_map=coco",
                *more,
            ]
        ),
    ).experiment


def test_paths_follow_the_directory(tmp_path):
    before, after = tmp_path / "run", tmp_path / "moved"
    stored = store_paths(experiment_in(before), before)
    assert stored.data.train.paths == ("{model_directory}/data/a.record", "elsewhere/b.record")
    assert stored.data.evaluation.label_map == "coco"
    assert place_paths(stored, before) == experiment_in(before)
    assert place_paths(stored, after) == experiment_in(after)
    assert place_paths(stored, after / "checkpoints/20") == experiment_in(after)
    assert without_own_paths(stored).data.train.paths == ("elsewhere/b.record",)
    assert without_own_paths(stored).data.train.label_map == ""


def test_relative_paths_are_those_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored = store_paths(experiment_in("runs/x"), tmp_path / "runs/x")
    assert stored.data.train.label_map == "{model_directory}/data/labels.pbtxt"


def test_stored_paths_are_relative_to_the_directory_and_stay_in_it(tmp_path):
    copy = tmp_path / "experiment.yaml"
    copy.write_text(to_yaml(store_paths(experiment_in(tmp_path), tmp_path)))
    assert read_config(copy).experiment.data == experiment_in(tmp_path).data
    stored = experiment_in("runs", 'data.train.label_map="{model_directory}/../x"')
    with pytest.raises(UserError, match="leads out of the model directory"):
        place_paths(stored, tmp_path)
