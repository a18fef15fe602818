"""Names of TensorFlow's models in checkpoints, and imports by them.

The TF2 goldens of the Object Detection API are the keys and shapes of checkpoints that the original
wrote: the package tf-models-research-object-detection 2.8.0.post1 with TensorFlow 2.11, each model
built from the configuration beside its keys, and saved as `Checkpoint(model=model)` and as
`Checkpoint(feature_extractor=classification_backbone)`.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from stillbox.checkpoints.importer import ImportOptions, read_weights
from stillbox.checkpoints.names import (
    names_under,
    object_path_table,
    parts_without_names,
    reference_names,
)
from stillbox.checkpoints.saving import save_weights
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.models.build import abstract_detector
from tests.checkpoints.detectors import write_trained
from tests.checkpoints.tf_writer import write_checkpoint
from tests.small import SHARED, needs_shared

API_GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "checkpoints"
API_MODELS = {
    # The original builds the whole network in the first stage.
    "faster_rcnn_resnet50_coco": schema.FasterRcnn(
        backbone=schema.ResNetV1(output_stride=16, last_layer="block_4")
    ),
    "faster_rcnn_inception_v2_coco": schema.FasterRcnn(
        backbone=schema.InceptionV2(), boxes=schema.RoIHead(head=schema.InceptionV2BlockHead())
    ),
}
RESNET = API_MODELS["faster_rcnn_resnet50_coco"]


@cache
def api_variables(name):
    """Shapes by path of all of a model's arrays."""
    _, params, stats = abstract_detector(API_MODELS[name], "float32")
    return {**params, **stats}


@pytest.mark.parametrize("name", API_MODELS)
def test_every_variable_has_the_name_and_shape_of_the_original(name):
    arrays = api_variables(name)
    names = reference_names(API_MODELS[name], arrays)
    ours = {names[path]: list(array.shape) for path, array in arrays.items()}
    theirs = dict(json.loads((API_GOLDENS / f"{name}_variables.json").read_text()))
    assert ours == theirs
    assert parts_without_names(API_MODELS[name], arrays, names) == []


def test_parts_of_the_second_generation_have_no_names():
    head = schema.FullyConnectedHead()
    model = replace(RESNET, boxes=schema.RoIHead(head=head))
    arrays = {
        f"{layer}.kernel": np.zeros((1, 1))
        for layer in ("backbone.root", "proposals.box_0", "proposals.box_1", "box_head.dense_1")
    }
    names = reference_names(model, arrays)
    assert list(names) == ["backbone.root.kernel"]
    unnamed = parts_without_names(model, arrays, names)
    assert unnamed == ["box_head 'fully_connected'", "proposals 'faster_rcnn'"]


def _read(path, arrays, name, **options):
    write_checkpoint(path, arrays)
    options = ImportOptions(**{"load_heads": False} | options)
    return read_weights(api_variables(name), API_MODELS[name], path, options)


def _drawn(shapes):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_classifier_initialises_both_stages(tmp_path):
    shapes = dict(
        json.loads((API_GOLDENS / "faster_rcnn_resnet50_coco_variables.json").read_text())
    )
    first = "FirstStageFeatureExtractor/"
    second_stage = {
        name.removeprefix(first): shape for name, shape in shapes.items() if first in name
    }
    arrays = _drawn(second_stage | {"resnet_v1_50/logits/weights": [1, 1, 2048, 1000]})
    report, arrays_read = _read(
        tmp_path / "c.ckpt", arrays, "faster_rcnn_resnet50_coco", scope="classification"
    )
    unit = "block_4.unit_2.conv_2.kernel"
    name = "resnet_v1_50/block4/unit_2/bottleneck_v1/conv2/weights"
    assert report.loaded[f"backbone.{unit}"] == report.loaded[f"box_head.{unit}"] == name
    np.testing.assert_array_equal(arrays_read[f"box_head.{unit}"], arrays[name])
    # All of the first stage's, and the 50 of block 4 once more.
    assert len(arrays_read) == len(second_stage) + 50
    assert list(report.skipped) == ["resnet_v1_50/logits/weights"]


@pytest.mark.parametrize("heads", [False, True])
def test_heads_are_taken_on_demand(tmp_path, heads):
    name = "faster_rcnn_inception_v2_coco"
    shapes = dict(json.loads((API_GOLDENS / f"{name}_variables.json").read_text()))
    scope = {"scope": "detection", "load_heads": heads}
    report, _ = _read(tmp_path / "d.ckpt", _drawn(shapes), name, **scope)
    # The RPN's convolution, and box and class layers of both stages.
    assert len(report.loaded) == len(shapes) - (0 if heads else 10)
    reasons = {} if heads else {"proposals not asked for", "box_predictor not asked for"}
    assert set(report.skipped.values()) == set(reasons)


def test_other_classes_are_noted(tmp_path):
    name = "faster_rcnn_inception_v2_coco"
    arrays = _drawn(dict(json.loads((API_GOLDENS / f"{name}_variables.json").read_text())))
    scope = "SecondStageBoxPredictor/ClassPredictor/"
    arrays |= _drawn({f"{scope}weights": [1024, 21], f"{scope}biases": [21]})
    options = {"scope": "detection", "load_heads": True, "min_loaded": 0.5}
    report, arrays_read = _read(tmp_path / "d.ckpt", arrays, name, **options)
    assert {mismatch.path for mismatch in report.mismatched} == {
        "box_predictor.class_.kernel",
        "box_predictor.class_.bias",
    }
    assert "has 21 logits a box, this model's has 91" in report.notes[0]
    assert arrays_read["box_predictor.box.kernel"].shape == (1024, 360)


def test_saved_weights_come_back(tmp_path):
    thin = {"depth_multiplier": 0.05, "min_depth": 4}
    head = schema.InceptionV2BlockHead(**thin)
    model = replace(
        API_MODELS["faster_rcnn_inception_v2_coco"],
        backbone=schema.InceptionV2(**thin),
        proposals=schema.RPN(depth=4),
        boxes=schema.RoIHead(head=head),
    )
    _, params, stats = abstract_detector(model, "float32")
    drawn = _drawn({path: array.shape for path, array in {**params, **stats}.items()})
    held = ({path: drawn[path] for path in section} for section in (params, stats))
    saved = save_weights(write_trained(tmp_path / "m", model, *held), tmp_path / "model.ckpt")
    assert saved.unnamed == ()
    _, arrays_read = read_weights(
        {**params, **stats}, model, tmp_path / "model.ckpt", ImportOptions()
    )
    assert arrays_read.keys() == drawn.keys()
    for path, array in arrays_read.items():
        np.testing.assert_array_equal(array, drawn[path])


TF2_GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "checkpoints" / "tf2"
TF2_MODELS = sorted(path.stem for path in TF2_GOLDENS.glob("*.config"))
CLASSIFIERS = sorted(
    path.name.removesuffix("_classifier.json") for path in TF2_GOLDENS.glob("*r.json")
)
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
        name: list(arrays[path].shape)
        for path, name in names.items()
        if path.partition(".")[0] in parts
    }


def saved(name):
    layers = json.loads((TF2_GOLDENS / f"{name}.json").read_text())
    # EfficientNet's layers have two paths. The path by the classifier leads to all of them.
    paths = {layer.replace("/_efficientnet/", "/classification_backbone/") for layer in layers}
    assert len(paths) == len(layers)
    return {
        f"{layer.replace('/_efficientnet/', '/classification_backbone/')}/{kind}": array
        for layer, held in layers.items()
        for kind, array in held.items()
        if layer.rpartition("-")[2] not in CLASSIFIER_LAYERS.get(name.rpartition("_")[0], ())
    }


@pytest.mark.parametrize("name", TF2_MODELS)
def test_every_variable_has_the_path_and_shape_of_the_original(name):
    assert by_object_path(TF2_GOLDENS / f"{name}.config", "detection") == saved(f"{name}_keys")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_is_numbered_as_one_network(name):
    """The second stage of Faster R-CNN continues the numbers of the first."""
    path = TF2_GOLDENS / f"{name}.config"
    assert by_object_path(path, "classification") == saved(f"{name}_classifier")


@needs_shared
def test_a_published_model_has_the_paths_and_shapes_of_the_original():
    name = "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8"
    keys = json.loads((ZOO / "tf2_checkpoints.json").read_text())[name]["keys"]
    theirs = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): shape for key, _, shape, *_ in keys}
    del theirs["_CHECKPOINTABLE_OBJECT_GRAPH"], theirs["save_counter"]
    assert by_object_path(ZOO / "configs" / f"{name}.config", "detection") == theirs
