"""What an experiment that is stored with a model may bring, and fields of older versions.

Paths into a model directory stay right when it is moved.
"""

import dataclasses
import json
import re
import typing

import pytest

from stillbox.errors import UserError
from stillbox.experiment.resolve import read_config, resolve, with_overrides
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
    found = {
        f"{path}.{name}"
        for path, cls in SECTIONS
        for name, mark in field_marks(cls, Outside).items()
        if not mark.stored
    }
    assert found == set(MACHINE)


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
    assert f"stored experiment: {path}; --set" in said[0]
    assert "/home" not in said[0]


def test_settings_of_the_machine_come_from_the_command_line_alone():
    said = []
    from_stored("data: {workers: null, prefetch: 2}\n", "x.yaml", said.append)
    assert not said
    stored = from_stored("data: {workers: 3}\n", "x.yaml")
    assert stored.data.workers is None
    assert with_overrides(stored, ["data.workers=2"]).data.workers == 2


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
            with_overrides(Experiment(), [override])
        assert caught.value.where == f"--set {override}"
        assert caught.value.fix.startswith(f"{variable}=")


def test_no_weights_to_start_from_can_be_said(tmp_path):
    tuned = Experiment().with_changes({"train.fine_tune.checkpoint": "model.ckpt"})
    for word in ("", "null", "~"):
        experiment = with_overrides(tuned, [f"train.fine_tune.checkpoint={word}"])
        assert experiment.train.fine_tune.checkpoint == ""
    assert from_yaml("train: {fine_tune: {checkpoint: null}}") == Experiment()
    quoted = with_overrides(tuned, ["train.fine_tune.checkpoint=./null"])
    assert quoted.train.fine_tune.checkpoint == "./null"
    with pytest.raises(UserError, match="named fields, not null") as caught:
        with_overrides(tuned, ["train.fine_tune=null"])
    assert caught.value.fix == "--set train.fine_tune.checkpoint= takes none"


@pytest.mark.parametrize("place", ["/tmp/x", "../x", "a/../../x", "a\0b", "a\nb"])
def test_pictures_lead_out_of_no_folder(place):
    with pytest.raises(UserError, match="leads out of the folder of the results") as caught:
        Experiment().with_changes({"evaluation.pictures_directory": place})
    assert "evaluation.pictures_directory" in caught.value.where


def experiment_in(directory, *more):
    return read_config(
        "demo_scenes",
        [
            f"data.train.paths=[{directory}/data/a.record, elsewhere/b.record]",
            f"data.train.label_map={directory}/data/labels.pbtxt",
            "data.evaluation.label_map=coco",
            *more,
        ],
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
