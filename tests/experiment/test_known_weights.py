"""A recipe with a detector's weights by name has their classes."""

import pytest

from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.resolve import classes_of_weights, read_config
from stillbox.records.label_map import LabelMap, assign_slots, required_classes

DETECTORS = [row for row in known_weights().values() if row.scope == "detection"]
TAKEN = [(recipe, row.name) for row in DETECTORS for recipe in row.recipes]


@pytest.mark.parametrize("row", DETECTORS, ids=lambda row: row.name)
def test_every_detector_has_classes_that_its_label_map_names(row):
    label_map = LabelMap.from_file(row.label_map)
    slots = "contiguous" if row.recipes == ("nanodet_g_416",) else "label_map_id"
    assert required_classes(label_map, slots) == row.num_classes
    assert len(label_map) == {"coco": 80, "hands": 7, "objectron": 23}[row.label_map]


@pytest.mark.parametrize(("recipe", "name"), TAKEN)
def test_a_recipe_becomes_the_detector_of_its_weights(recipe, name):
    row = known_weights()[name]
    experiment = read_config(recipe, classes_of_weights(recipe, name)).experiment
    assert row.fits(experiment.model)
    assert experiment.model.num_classes == row.num_classes
    label_map = LabelMap.from_file(experiment.data.evaluation.label_map)
    assert assign_slots(label_map, row.num_classes, experiment.model.class_slots).ids


def test_what_is_no_name_of_a_detector_changes_nothing(tmp_path, monkeypatch):
    recipe, name = TAKEN[0]
    for weights in ("mobilenet_v1_1.0_224", "model.npz", ""):
        assert classes_of_weights(recipe, weights) == {}
    # A config of one's own says its classes itself, and a file of the name goes first.
    assert classes_of_weights("pipeline.config", name) == {}
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).touch()
    assert classes_of_weights(recipe, name) == {}
