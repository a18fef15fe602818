"""Object paths of detectors in TF2 checkpoints.

The goldens are the keys and shapes of checkpoints that the original wrote: the Object Detection API
of PyPI's tf-models-research-object-detection 2.8.0.post1 with TensorFlow 2.11, each model built
from the configuration beside its keys, and saved as `Checkpoint(model=model)` and as
`Checkpoint(feature_extractor=classification_backbone)`.
"""

import json
from functools import cache
from pathlib import Path

import pytest

from stillbox.checkpoints.names import names_under, object_path_table
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.models.abstract import abstract_detector
from tests.shared import SHARED, needs_shared

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "checkpoints" / "tf2"
MODELS = sorted(path.stem for path in GOLDENS.glob("*.config"))
CLASSIFIERS = sorted(path.name.removesuffix("_classifier.json") for path in GOLDENS.glob("*r.json"))
# Layers behind the features, which no detector computes.
CLASSIFIER_LAYERS = {"ssd_efficientdet_d0": ("128", "129", "130")}
ZOO = SHARED / "goldens" / "detection_zoo"


@cache
def described(path):
    """The model of a configuration, and its arrays by path."""
    model = read_pipeline_config(path.read_text(), path.name).experiment.model
    _, params, stats = abstract_detector(model, "float32")
    return model, {**params, **stats}


def by_object_path(path, scope):
    """Shapes by object path of what a checkpoint of that scope holds."""
    model, arrays = described(path)
    table = object_path_table(model)
    names = names_under(table.roots[scope][0], table, model, arrays)
    if scope == "detection":
        assert names.keys() == arrays.keys()
    parts = model.parts if scope == "detection" else model.classifier_parts
    return {
        name: list(arrays[own].shape)
        for own, name in names.items()
        if own.partition(".")[0] in parts
    }


def saved(name):
    layers = json.loads((GOLDENS / f"{name}.json").read_text())
    # EfficientNet's layers have two paths. The one of the classifier leads to all of them.
    paths = {layer.replace("/_efficientnet/", "/classification_backbone/") for layer in layers}
    assert len(paths) == len(layers)
    return {
        f"{layer.replace('/_efficientnet/', '/classification_backbone/')}/{kind}": own
        for layer, held in layers.items()
        for kind, own in held.items()
        if layer.rpartition("-")[2] not in CLASSIFIER_LAYERS.get(name.rpartition("_")[0], ())
    }


@pytest.mark.parametrize("name", MODELS)
def test_every_variable_has_the_path_and_shape_of_the_original(name):
    assert by_object_path(GOLDENS / f"{name}.config", "detection") == saved(f"{name}_keys")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_is_numbered_as_one_network(name):
    """The second stage of Faster R-CNN continues the numbers of the first."""
    path = GOLDENS / f"{name}.config"
    assert by_object_path(path, "classification") == saved(f"{name}_classifier")


@needs_shared
def test_a_published_model_has_the_paths_and_shapes_of_the_original():
    name = "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8"
    keys = json.loads((ZOO / "tf2_checkpoints.json").read_text())[name]["keys"]
    theirs = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): shape for key, _, shape, *_ in keys}
    del theirs["_CHECKPOINTABLE_OBJECT_GRAPH"], theirs["save_counter"]
    assert by_object_path(ZOO / "configs" / f"{name}.config", "detection") == theirs
