"""Paths into a model directory stay right when it is moved."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment.own_paths import place_paths, store_paths, without_own_paths
from stillbox.experiment.resolve import read_config
from stillbox.experiment.yaml_config import to_yaml


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


def test_the_copy_in_the_directory_is_a_config(tmp_path):
    copy = tmp_path / "experiment.yaml"
    copy.write_text(to_yaml(store_paths(experiment_in(tmp_path), tmp_path)))
    assert read_config(copy).experiment.data == experiment_in(tmp_path).data


def test_no_path_leads_out_of_the_directory(tmp_path):
    stored = experiment_in("runs", 'data.train.label_map="{model_directory}/../x"')
    with pytest.raises(UserError, match="leads out of the model directory"):
        place_paths(stored, tmp_path)
