"""Names of two-stage detectors in TF1 checkpoints, and imports by them."""

import json
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from stillbox.checkpoints.importer import read_weights
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.names import parts_without_names, reference_names
from stillbox.checkpoints.saving import save_weights
from stillbox.experiment import schema
from stillbox.experiment.yaml_config import to_yaml
from stillbox.models.abstract import abstract_detector
from tests.checkpoints.tf1_writer import write_checkpoint

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "checkpoints"
MODELS = {
    # The original builds the whole network in the first stage.
    "faster_rcnn_resnet50_coco": schema.FasterRcnn(
        backbone=schema.ResNetV1(output_stride=16, last_layer="block_4")
    ),
    "faster_rcnn_inception_v2_coco": schema.FasterRcnn(
        backbone=schema.InceptionV2(),
        boxes=schema.BoxStage(head=schema.InceptionV2BlockHead()),
    ),
}
RESNET = MODELS["faster_rcnn_resnet50_coco"]


@cache
def variables(name):
    """Shapes by path of all of a model's arrays."""
    _, params, stats = abstract_detector(MODELS[name], "float32")
    return {**params, **stats}


@pytest.mark.parametrize("name", MODELS)
def test_every_variable_has_the_name_and_shape_of_the_original(name):
    arrays = variables(name)
    names = reference_names(MODELS[name], arrays)
    ours = {names[path]: list(array.shape) for path, array in arrays.items()}
    theirs = dict(json.loads((GOLDENS / f"{name}_variables.json").read_text()))
    assert ours == theirs
    assert parts_without_names(MODELS[name], arrays, names) == []


def test_parts_of_the_second_generation_have_no_names():
    head = schema.FullyConnectedHead()
    model = replace(RESNET, boxes=schema.BoxStage(head=head))
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
    settings = {"load_heads": False, "min_loaded": 1.0} | options
    return read_weights(variables(name), MODELS[name], path, **settings)


def _drawn(shapes):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_classifier_initialises_both_stages(tmp_path):
    shapes = dict(json.loads((GOLDENS / "faster_rcnn_resnet50_coco_variables.json").read_text()))
    first = "FirstStageFeatureExtractor/"
    own = {name.removeprefix(first): shape for name, shape in shapes.items() if first in name}
    arrays = _drawn(own | {"resnet_v1_50/logits/weights": [1, 1, 2048, 1000]})
    report, found = _read(
        tmp_path / "c.ckpt", arrays, "faster_rcnn_resnet50_coco", scope="classification"
    )
    unit = "block_4.unit_2.conv_2.kernel"
    name = "resnet_v1_50/block4/unit_2/bottleneck_v1/conv2/weights"
    assert report.loaded[f"backbone.{unit}"] == report.loaded[f"box_head.{unit}"] == name
    np.testing.assert_array_equal(found[f"box_head.{unit}"], arrays[name])
    # All of the first stage's, and the 50 of block 4 once more.
    assert len(found) == len(own) + 50
    assert list(report.skipped) == ["resnet_v1_50/logits/weights"]


@pytest.mark.parametrize("heads", [False, True])
def test_heads_are_taken_on_demand(tmp_path, heads):
    name = "faster_rcnn_inception_v2_coco"
    shapes = dict(json.loads((GOLDENS / f"{name}_variables.json").read_text()))
    scope = {"scope": "detection", "load_heads": heads}
    report, _ = _read(tmp_path / "d.ckpt", _drawn(shapes), name, **scope)
    # The RPN's convolution, and box and class layers of both stages.
    assert len(report.loaded) == len(shapes) - (0 if heads else 10)
    reasons = {} if heads else {"proposals not asked for", "box_predictor not asked for"}
    assert set(report.skipped.values()) == set(reasons)


def test_other_classes_are_noted(tmp_path):
    name = "faster_rcnn_inception_v2_coco"
    arrays = _drawn(dict(json.loads((GOLDENS / f"{name}_variables.json").read_text())))
    scope = "SecondStageBoxPredictor/ClassPredictor/"
    arrays |= _drawn({f"{scope}weights": [1024, 21], f"{scope}biases": [21]})
    options = {"scope": "detection", "load_heads": True, "min_loaded": 0.5}
    report, found = _read(tmp_path / "d.ckpt", arrays, name, **options)
    assert {mismatch.path for mismatch in report.mismatched} == {
        "box_predictor.class_.kernel",
        "box_predictor.class_.bias",
    }
    assert "has 21 logits a box, this model's has 91" in report.notes[0]
    assert found["box_predictor.box.kernel"].shape == (1024, 360)


def test_saved_weights_come_back(tmp_path):
    thin = {"depth_multiplier": 0.05, "min_depth": 4}
    head = schema.InceptionV2BlockHead(**thin)
    model = replace(
        MODELS["faster_rcnn_inception_v2_coco"],
        backbone=schema.InceptionV2(**thin),
        proposals=schema.ProposalStage(depth=4),
        boxes=schema.BoxStage(head=head),
    )
    _, params, stats = abstract_detector(model, "float32")
    drawn = _drawn({path: array.shape for path, array in {**params, **stats}.items()})
    sections = {
        name: {path: drawn[path] for path in held}
        for name, held in (("params", params), ("stats", stats))
    }
    experiment = to_yaml(schema.Experiment(model=model))
    with closing(
        ModelDirectory.create(tmp_path / "m", experiment=experiment, label_map="", versions={})
    ) as directory:
        directory.save(1, sections, {})
    saved = save_weights(tmp_path / "m", tmp_path / "model.ckpt")
    assert saved.own == ()
    _, found = read_weights(
        {**params, **stats},
        model,
        tmp_path / "model.ckpt",
        scope="detection",
        load_heads=True,
        min_loaded=1.0,
    )
    assert found.keys() == drawn.keys()
    for path, array in found.items():
        np.testing.assert_array_equal(array, drawn[path])
