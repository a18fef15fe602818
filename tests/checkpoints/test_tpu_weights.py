"""Import of the weights of ResNet and of RetinaNet's detectors from TensorFlow and torchvision."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from safetensors.numpy import save_file

from stillbox.checkpoints.array_files import write_npz
from stillbox.checkpoints.importer import ImportOptions, import_weights
from stillbox.checkpoints.names import reference_names
from stillbox.experiment import schema
from stillbox.references import Setting
from tests import tpu_detection
from tests.checkpoints.detectors import (
    build,
    named,
    random_arrays,
    read,
    shapes,
    small_shapes,
    ssd,
    take,
    tf1_arrays,
    torch_arrays,
    with_backbone,
)
from tests.checkpoints.tf_writer import write_checkpoint
from tests.checkpoints.torch_writer import state_dict, write_pickles, write_tar, write_zip
from tests.helpers import refused
from tests.tpu_detection import resnet, retinanet

BEHIND = "layer behind the last that this model uses"
LOGITS = "classifier's logits"
# The stem, the first convolution of group 1, and their batch norms.
FROZEN = (
    "conv2d/kernel",
    "batch_normalization/gamma",
    "batch_normalization/beta",
    "conv2d_1/kernel",
    "batch_normalization_1/gamma",
    "batch_normalization_1/beta",
)


@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("root", ["resnet34/", "resnet/", ""])
def test_a_tensorflow_classifier_loads_the_backbone(tmp_path, root, slots):
    held = {root + name: array for name, array in tf1_arrays("classification").items()}
    rest = {
        f"{root}conv2d_29/kernel": BEHIND,
        f"{root}batch_normalization_35/moving_mean": BEHIND,
        f"{root}dense/kernel": LOGITS,
        f"{root}dense/bias": LOGITS,
        "global_step": "training counter",
    }
    if slots:
        trained = [name for name in (*held, f"{root}conv2d_29/kernel") if "moving" not in name]
        rest |= {f"{name}/Momentum": "optimizer slot" for name in trained}
    write_checkpoint(tmp_path / "m", held | dict.fromkeys(rest, np.zeros(1, np.float32)))
    detector, report = take(tmp_path / "m")
    assert report.skipped == rest
    assert not report.notes
    names = named(ssd(), shapes(), scope="classification")
    assert len(names) == 145
    assert report.loaded == {path: root + name for path, name in names.items()}
    for path, name in report.loaded.items():
        assert np.array_equal(read(detector, path), held[name]), path


def test_a_classifier_in_detection_scope_lacks_the_extra_layers(tmp_path):
    write_checkpoint(tmp_path / "m", tf1_arrays("classification"))
    # Ten convolutions with kernel and bias.
    _, report = take(tmp_path / "m", scope="detection", least=145 / 165)
    assert len(report.loaded) == 145
    assert len(report.missing) == 20
    assert report.missing["neck.extra_1_1x1.kernel"] == "ssd/block7-conv1x1/kernel"


def test_a_tensorflow_detector_is_loaded_completely(tmp_path):
    arrays = tf1_arrays()
    frozen = {f"resnet34/{name}" for name in FROZEN}
    trained = {name for name in arrays if "moving" not in name} - frozen
    # The original has 131 trained variables and a slot for each, but 6 are frozen.
    slots = {f"{name}/Momentum": np.zeros(1, np.float32) for name in trained}
    assert len(slots) == 125
    write_checkpoint(tmp_path / "m", arrays | slots)
    detector, report = take(tmp_path / "m", scope="detection", heads=True)
    assert len(report.loaded) == 189
    assert list(report.skipped.values()) == ["optimizer slot"] * 125
    assert all(np.array_equal(read(detector, p), arrays[n]) for p, n in report.loaded.items())

    _, report = take(tmp_path / "m", scope="classification")
    assert len(report.loaded) == 145
    reasons = {"head not asked for", "neck not asked for", "optimizer slot"}
    assert set(report.skipped.values()) == reasons


def _write_safetensors(path, arrays):
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


FILES = {
    "r34.safetensors": _write_safetensors,
    "r34.npz": lambda path, arrays: np.savez(path, **arrays),
    "zip.pth": lambda path, arrays: write_zip(path, state_dict(arrays)),
    "pickles.pt": lambda path, arrays: write_pickles(path, state_dict(arrays)),
    "tar.pth": lambda path, arrays: write_tar(path, state_dict(arrays)),
}


@pytest.mark.parametrize(
    ("file", "prefix"),
    [*((file, "") for file in FILES), ("zip.pth", "module."), ("r34.npz", "backbone.body.")],
)
def test_a_torchvision_classifier_loads_the_backbone(tmp_path, file, prefix):
    arrays = {prefix + name: array for name, array in torch_arrays().items()}
    FILES[file](tmp_path / file, arrays)
    detector, report = take(tmp_path / file)
    assert len(report.loaded) == 145
    for path, name in {
        "stem.kernel": "conv1.weight",
        "stem.norm.var": "bn1.running_var",
        "group_1.block_1.conv_1.norm.scale": "layer1.0.bn1.weight",
        "group_3.block_6.conv_2.kernel": "layer3.5.conv2.weight",
        "group_3.block_6.conv_2.norm.bias": "layer3.5.bn2.bias",
        "group_2.block_1.shortcut.kernel": "layer2.0.downsample.0.weight",
        "group_2.block_1.shortcut.norm.mean": "layer2.0.downsample.1.running_mean",
    }.items():
        assert report.loaded[f"backbone.{path}"] == prefix + name
    for path, name in report.loaded.items():
        array = arrays[name]
        if path.endswith("kernel"):
            # [out, in, rows, columns] becomes [rows, columns, in, out].
            array = np.moveaxis(array, (0, 1), (3, 2))
        assert np.array_equal(read(detector, path), array), path
    # Of layer 4 three convolutions with batch norm.
    counters = ["count of batches, which nothing here uses"] * 2
    assert sorted(report.skipped.values()) == sorted([BEHIND] * 15 + [LOGITS] * 2 + counters)


def test_weights_are_found_in_a_training_script_s_checkpoint(tmp_path):
    weights = {f"module.{name}": array for name, array in torch_arrays().items()}
    momentum = {"state": {"0": {"momentum_buffer": np.zeros(3, np.float32)}}}
    saved = {"epoch": 90, "state_dict": state_dict(weights), "optimizer": momentum}
    write_zip(tmp_path / "c.pth", saved)
    _, report = take(tmp_path / "c.pth")
    assert report.loaded["backbone.stem.kernel"] == "state_dict.module.conv1.weight"
    assert report.skipped["optimizer.state.0.momentum_buffer"] == "optimizer slot"


def test_a_file_with_the_weights_twice_is_refused(tmp_path):
    arrays = torch_arrays()
    write_zip(tmp_path / "c.pth", {"model": arrays, "model_ema": arrays})
    with refused("c.pth", "model_ema"):
        take(tmp_path / "c.pth")
    # Arrays without a prefix leave no doubt.
    write_zip(tmp_path / "d.pth", {"model": arrays, "model_ema": arrays} | arrays)
    assert take(tmp_path / "d.pth")[1].loaded["backbone.stem.kernel"] == "conv1.weight"


@pytest.mark.parametrize("prefix", ["module.", "backbone.", "backbone.body.", "a.b.c.d.e."])
@pytest.mark.parametrize("lacking", ["layer3.5.bn2.bias", "bn1.weight", "conv1.weight"])
def test_a_prefix_of_most_names_is_used_as_without_it(tmp_path, prefix, lacking):
    arrays = {f"{prefix}{name}": array for name, array in torch_arrays().items()}
    arrays["head.bn1.weight"] = np.zeros(3)
    del arrays[f"{prefix}{lacking}"]
    write_zip(tmp_path / "c.pth", arrays)
    with refused("c.pth", 144, 145):
        take(tmp_path / "c.pth")


def test_a_prefix_of_few_names_is_not_used(tmp_path):
    some = list(torch_arrays().items())[:60]
    write_zip(tmp_path / "c.pth", {f"module.{name}": array for name, array in some})
    with refused("c.pth", 145) as caught:
        take(tmp_path / "c.pth")
    assert "module.bn1.bias" in str(caught.value)


def test_two_incomplete_copies_are_refused_by_their_prefixes(tmp_path):
    arrays = torch_arrays()
    del arrays["conv1.weight"]
    write_zip(tmp_path / "c.pth", {"model": {"backbone": arrays, "ema": arrays}})
    with refused("c.pth", "model.backbone", "model.ema"):
        take(tmp_path / "c.pth")


def test_half_precision_of_torch_becomes_float32(tmp_path):
    arrays = {name: array.astype(np.float16) for name, array in torch_arrays().items()}
    write_zip(tmp_path / "h.pth", arrays)
    values = read(take(tmp_path / "h.pth")[0], "backbone.stem.norm.bias")
    assert values.dtype == np.float32
    assert np.array_equal(values, arrays["bn1.bias"].astype(np.float32))


def _note(library, wanted, padding):
    return (
        f"{library}'s weights of this backbone want pool_padding: {wanted}, and it is {padding}: "
        f"{Setting('model.backbone.pool_padding', wanted)}",
    )


@pytest.mark.parametrize("padding", ["same", "symmetric"])
def test_a_note_names_the_framework_s_pool_padding(tmp_path, padding):
    model = with_backbone(pool_padding=padding)
    write_zip(tmp_path / "t.pth", torch_arrays())
    write_checkpoint(tmp_path / "m", tf1_arrays())
    write_npz(tmp_path / "own.npz", random_arrays(small_shapes()))
    reports = {name: take(tmp_path / name, model=model)[1] for name in ("t.pth", "m", "own.npz")}
    notes = {name: report.notes for name, report in reports.items()}
    assert notes == {
        "t.pth": () if padding == "symmetric" else _note("torch", "symmetric", padding),
        "m": () if padding == "same" else _note("tensorflow", "same", padding),
        "own.npz": (),
    }
    assert ("note: torch's weights" in reports["t.pth"].render()) == (padding == "same")


def test_a_backbone_of_another_architecture_is_reported(tmp_path):
    arrays = torch_arrays()
    misfit = {n: np.zeros(3, np.float32) if "layer3" in n else a for n, a in arrays.items()}
    write_zip(tmp_path / "t.pth", misfit)
    model = with_backbone(pool_padding="symmetric")
    _, report = take(tmp_path / "t.pth", model=model, least=0.5)
    # 13 convolutions of group 3, with batch norm.
    note = "65 arrays of the backbone of another shape: is it the same architecture?"
    assert report.notes == (note,)
    with refused("t.pth"):
        take(tmp_path / "t.pth", model=model)


def test_another_scope_is_not_suggested_if_the_names_fit(tmp_path):
    misfit = dict.fromkeys(tf1_arrays(), np.zeros(3, np.float32))
    write_checkpoint(tmp_path / "m", misfit)
    with refused("m", 145) as caught:
        take(tmp_path / "m")
    assert "fine_tune.scope" not in str(caught.value)


def test_messages_on_torch_files_use_torch_s_names(tmp_path):
    write_zip(tmp_path / "t.pth", {"0.weight": np.zeros(3, np.float32)})
    with refused("t.pth", "bn1.bias"):
        take(tmp_path / "t.pth", least=0.0)


PYRAMIDS = {"fpn": retinanet(), "nas_fpn": retinanet(schema.NasFpn())}


@cache
def small_retinanet_shapes(model):
    """The arrays of a detector with few numbers."""
    paths = tpu_detection.shapes(model)
    return {path: (2, 3, 4, 5) if path.endswith("kernel") else (5,) for path in paths}


def take_retinanet(model, path, *, scope="detection"):
    detector = build(small_retinanet_shapes(model))
    return detector, import_weights(detector, model, path, ImportOptions(scope=scope))


def retinanet_tf1_arrays(model):
    """Random arrays under the original's names."""
    shapes = small_retinanet_shapes(model)
    names = reference_names(model, {path: np.empty(shape) for path, shape in shapes.items()})
    assert names.keys() == shapes.keys()
    return random_arrays({name: shapes[path] for path, name in names.items()})


@pytest.mark.parametrize("pyramid", PYRAMIDS)
def test_a_trained_detector_is_loaded_completely(tmp_path, pyramid):
    model = PYRAMIDS[pyramid]
    arrays = retinanet_tf1_arrays(model)
    slots = {f"{n}/Momentum": np.zeros(1, np.float32) for n in arrays if "moving" not in n}
    write_checkpoint(tmp_path / "m", arrays | slots | {"global_step": np.array(22500)})
    detector, report = take_retinanet(model, tmp_path / "m")
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
        for name, array in retinanet_tf1_arrays(model).items()
        if name.startswith("resnet50/")
    }
    rest = dict.fromkeys(("dense/kernel", "dense/bias", "global_step"), np.zeros(1, np.float32))
    write_checkpoint(tmp_path / "m", arrays | rest)
    detector, report = take_retinanet(model, tmp_path / "m", scope="classification")
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


def retinanet_torch_arrays():
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
    arrays = retinanet_torch_arrays()
    rest = {"fc.weight": np.zeros((10, 5), np.float32), "bn1.num_batches_tracked": np.array(7)}
    save_file(arrays | rest, tmp_path / "r50.safetensors")
    model = retinanet(backbone=replace(resnet(50), pool_padding="symmetric"))
    detector, report = take_retinanet(model, tmp_path / "r50.safetensors", scope="classification")
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
