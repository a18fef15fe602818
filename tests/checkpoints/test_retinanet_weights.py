"""Weights of RetinaNet's detectors and of the classifiers before them, into stand-ins."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from safetensors.numpy import save_file

from stillbox.checkpoints.importer import import_weights
from stillbox.checkpoints.names import reference_names
from stillbox.experiment import schema
from tests import tpu_detection
from tests.checkpoints.detectors import build, random_arrays, read
from tests.checkpoints.tf1_writer import write_checkpoint
from tests.tpu_detection import resnet, retinanet

PYRAMIDS = {"fpn": retinanet(), "nas_fpn": retinanet(schema.NasFpn())}


@cache
def small_shapes(model):
    """The arrays of a detector with few numbers."""
    paths = tpu_detection.shapes(model)
    return {path: (2, 3, 4, 5) if path.endswith("kernel") else (5,) for path in paths}


def take(model, path, *, scope="detection"):
    detector = build(small_shapes(model))
    options = {"scope": scope, "load_heads": True, "min_loaded": 1.0}
    return detector, import_weights(detector, model, path, **options)


def tf1_arrays(model):
    """Random arrays under the original's names."""
    shapes = small_shapes(model)
    names = reference_names(model, {path: np.empty(shape) for path, shape in shapes.items()})
    assert names.keys() == shapes.keys()
    return random_arrays({name: shapes[path] for path, name in names.items()})


@pytest.mark.parametrize("pyramid", PYRAMIDS)
def test_a_trained_detector_is_loaded_completely(tmp_path, pyramid):
    model = PYRAMIDS[pyramid]
    arrays = tf1_arrays(model)
    slots = {f"{n}/Momentum": np.zeros(1, np.float32) for n in arrays if "moving" not in n}
    write_checkpoint(tmp_path / "m", arrays | slots | {"global_step": np.array(22500)})
    detector, report = take(model, tmp_path / "m")
    assert len(report.loaded) == len(arrays) == {"fpn": 481, "nas_fpn": 673}[pyramid]
    for path, name in report.loaded.items():
        assert np.array_equal(read(detector, path), arrays[name]), path
    # The original trains 285 and 411 variables.
    trained = {"fpn": 285, "nas_fpn": 411}[pyramid]
    reasons = sorted(report.skipped.values())
    assert reasons == ["optimizer slot"] * trained + ["training counter"]


def test_a_classifier_without_a_root_loads_the_backbone(tmp_path):
    model = PYRAMIDS["fpn"]
    arrays = {
        name.removeprefix("resnet50/"): array
        for name, array in tf1_arrays(model).items()
        if name.startswith("resnet50/")
    }
    rest = dict.fromkeys(("dense/kernel", "dense/bias", "global_step"), np.zeros(1, np.float32))
    write_checkpoint(tmp_path / "m", arrays | rest)
    detector, report = take(model, tmp_path / "m", scope="classification")
    assert len(report.loaded) == 265
    stem = report.loaded["backbone.stem.kernel"]
    assert stem == "conv2d/kernel"
    assert np.array_equal(read(detector, "backbone.stem.kernel"), arrays[stem])
    logits = "classifier's logits"
    assert report.skipped == {
        "dense/kernel": logits,
        "dense/bias": logits,
        "global_step": "training counter",
    }
    assert not report.notes


def torch_arrays():
    """A ResNet-50 as torchvision names it."""
    shapes = {}

    def convolution(conv, norm):
        shapes[f"{conv}.weight"] = (5, 4, 2, 3)  # [out, in, rows, columns]
        for name in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{name}"] = (5,)

    convolution("conv1", "bn1")
    for group, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            scope = f"layer{group}.{block}"
            for number in (1, 2, 3):
                convolution(f"{scope}.conv{number}", f"{scope}.bn{number}")
            if block == 0:
                convolution(f"{scope}.downsample.0", f"{scope}.downsample.1")
    return random_arrays(shapes)


def test_torchvision_bottlenecks_load_the_backbone(tmp_path):
    arrays = torch_arrays()
    rest = {"fc.weight": np.zeros((10, 5), np.float32), "bn1.num_batches_tracked": np.array(7)}
    save_file(arrays | rest, tmp_path / "r50.safetensors")
    model = retinanet(backbone=replace(resnet(50), pool_padding="symmetric"))
    detector, report = take(model, tmp_path / "r50.safetensors", scope="classification")
    assert len(report.loaded) == len(arrays) == 265
    assert not report.notes
    for path, name in {
        "group_1.block_1.shortcut.kernel": "layer1.0.downsample.0.weight",
        "group_4.block_1.conv_2.kernel": "layer4.0.conv2.weight",
        "group_3.block_6.conv_3.norm.var": "layer3.5.bn3.running_var",
    }.items():
        assert report.loaded[f"backbone.{path}"] == name
    kernel = arrays["layer4.0.conv2.weight"].transpose(2, 3, 1, 0)
    assert np.array_equal(read(detector, "backbone.group_4.block_1.conv_2.kernel"), kernel)
