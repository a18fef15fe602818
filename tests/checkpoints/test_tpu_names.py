"""TensorFlow's names of ResNet, SpineNet, RetinaNet's pyramids, and the heads around them."""

import json
import sys
from dataclasses import replace
from pathlib import Path

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
from tests import tpu_detection
from tests.checkpoints.detectors import backbone_shapes, named, shapes, ssd
from tests.checkpoints.tf_writer import write_checkpoint
from tests.checkpoints.torch_writer import state_dict, write_pickles
from tests.small import needs_shared
from tests.tpu_detection import golden_variables, named_shapes, retinanet

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "checkpoints"


def test_the_arrays_are_as_many_as_the_original_has():
    def count(part):
        sizes = [
            np.prod(shape)
            for path, shape in shapes().items()
            if path.startswith(part) and not path.endswith((".mean", ".var"))
        ]
        return sum(sizes), len(sizes)

    assert count("backbone") == (8_170_304, 87)
    # Five times and six times two convolutions, each with kernel and bias.
    assert count("neck") == (3_574_400, 20)
    assert count("head") == (8_227_830, 24)
    assert count("") == (19_972_534, 131)
    assert (sum(np.prod(s) for s in shapes().values()), len(shapes())) == (19_982_390, 189)
    assert len(set(named(ssd(), shapes()).values())) == 189


def test_layers_are_numbered_in_the_order_in_which_the_original_made_them():
    names = named(ssd(), shapes())
    number = {
        path.removesuffix(".kernel"): name.removeprefix("resnet34/conv2d").removesuffix("/kernel")
        for path, name in names.items()
        if path.startswith("backbone.") and path.endswith(".kernel")
    }
    # 0 stem; 1-6 group 1; 7 projection, 8-15 group 2; 16 projection, 17-28 group 3.
    assert sorted(int(name.removeprefix("_") or 0) for name in number.values()) == list(range(29))
    assert number["backbone.stem"] == ""
    assert number["backbone.group_1.block_1.conv_1"] == "_1"
    assert number["backbone.group_1.block_3.conv_2"] == "_6"
    assert number["backbone.group_2.block_1.shortcut"] == "_7"
    assert number["backbone.group_2.block_1.conv_1"] == "_8"
    assert number["backbone.group_2.block_4.conv_2"] == "_15"
    assert number["backbone.group_3.block_1.shortcut"] == "_16"
    assert number["backbone.group_3.block_6.conv_2"] == "_28"
    # The batch norms that start at 0 are the last ones of their blocks.
    zero = (2, 4, 6, 9, 11, 13, 15, 18, 20, 22, 24, 26, 28)
    last = {name for path, name in names.items() if path.endswith("conv_2.norm.scale")}
    assert last == {f"resnet34/batch_normalization_{index}/gamma" for index in zero}


def test_extra_layers_and_heads_are_named_after_blocks_and_levels():
    names = named(ssd(), shapes())
    assert {name for path, name in names.items() if path.startswith("neck.")} == {
        f"ssd/block{block}-conv{size}x{size}/{kind}"
        for block in (7, 8, 9, 10, 11)
        for size in (1, 3)
        for kind in ("kernel", "bias")
    }
    assert names["neck.extra_1_1x1.kernel"] == "ssd/block7-conv1x1/kernel"
    assert names["neck.extra_5_3x3.bias"] == "ssd/block11-conv3x3/bias"
    for index, level in enumerate((3, 4, 5, 6, 7, 8)):
        assert names[f"head.map_{index}.class_.kernel"] == f"ssd/class_net/class-{level}/kernel"
        assert names[f"head.map_{index}.box.bias"] == f"ssd/box_net/box-{level}/bias"


def test_all_265_variables_of_the_resnet_50_of_retinanet_are_named_with_their_shapes():
    golden = json.loads((GOLDENS / "resnet50_tpu_detection_variables.json").read_text())
    theirs = {name: tuple(shape) for name, shape in golden}
    assert len(theirs) == 265
    ours = backbone_shapes(50)
    names = named(replace(ssd(), backbone=schema.ResNet(depth=50)), ours)
    assert {name: ours[path] for path, name in names.items()} == theirs


@pytest.mark.parametrize(
    ("depth", "convolutions"),
    # The layers by the usual count less the classifier's, and projections: of three groups where
    # the width of the first is the stem's, of four with bottlenecks.
    [
        (10, 9 + 3),
        (14, 13 + 4),
        (18, 17 + 3),
        (26, 25 + 4),
        (34, 33 + 3),
        (50, 49 + 4),
        (101, 100 + 4),
        (152, 151 + 4),
        (200, 199 + 4),
    ],
)
def test_every_depth_has_a_number_for_each_convolution(depth, convolutions):
    model = replace(ssd(), backbone=schema.ResNet(depth=depth))
    names = named(model, backbone_shapes(depth), scope="classification")
    kernels = {name for name in names.values() if name.endswith("/kernel")}
    numbered = {f"conv2d_{index}/kernel" for index in range(1, convolutions)}
    assert kernels == {"conv2d/kernel"} | numbered
    assert len(names) == 5 * convolutions


@pytest.mark.parametrize(("depth", "convolutions"), [(10, 9), (18, 17), (34, 33)])
def test_a_projection_of_the_first_group_has_the_first_number(depth, convolutions):
    config = schema.ResNet(depth=depth, project_first_block=True)
    ours = backbone_shapes(depth, project_first_block=True)
    names = named(replace(ssd(), backbone=config), ours)
    assert names["backbone.group_1.block_1.shortcut.kernel"] == f"resnet{depth}/conv2d_1/kernel"
    assert names["backbone.group_1.block_1.conv_1.kernel"] == f"resnet{depth}/conv2d_2/kernel"
    # All four groups project.
    last = f"resnet{depth}/batch_normalization_{convolutions + 4 - 1}/gamma"
    assert list(names.values()).count(last) == 1
    assert len(set(names.values())) == 5 * (convolutions + 4)


def test_parts_that_the_original_does_not_have_get_no_name():
    arrays = {"backbone.stem.kernel": (7, 7, 3, 64), "neck.projection_1.kernel": (1, 1, 256, 256)}
    model = replace(ssd(), neck=schema.Fpn())
    assert named(model, arrays) == {"backbone.stem.kernel": "resnet34/conv2d/kernel"}


_CELL = "fpn_cells/cell_4/sub_policy6/op_after_combine11"


def test_a_pyramid_and_its_head_are_named_after_levels():
    names = named_shapes(retinanet())
    # 53 convolutions with batch norm; 8 with kernel and bias, and 5 batch norms; of each tower 4
    # convolutions with 5 batch norms each, and the one behind it.
    assert len(names) == 53 * 5 + (8 * 2 + 5 * 4) + 2 * (4 * (2 + 5 * 4) + 2) == 481
    assert names["fpn/l3/kernel"] == (1, 1, 512, 256)
    assert names["fpn/post_hoc_d5/bias"] == (256,)
    assert names["fpn/p6/kernel"] == names["fpn/p7/kernel"] == (3, 3, 256, 256)
    assert names["fpn/p7-bn/moving_variance"] == (256,)
    assert names["retinanet/class_net/class-3/kernel"] == (3, 3, 256, 256)
    assert names["retinanet/box_net/box-0-7/gamma"] == (256,)
    # Nine anchors of 91 logits and of 4 codes.
    assert names["retinanet/class_net/class-predict/kernel"] == (3, 3, 256, 819)
    assert names["retinanet/box_net/box-predict/bias"] == (36,)


def test_a_pyramid_of_other_levels_is_named_after_those():
    names = named_shapes(retinanet(schema.RetinaNetFpn(min_level=4, max_level=5)))
    assert "retinanet/class_net/class-0-4/beta" in names
    assert "retinanet/class_net/class-0-5/beta" in names
    assert not [name for name in names if "-3/" in name and "-bn" in name]


def test_the_nodes_of_nas_fpn_are_named_after_policies():
    names = named_shapes(retinanet(schema.NasFpn()))
    # 3 taps and 5 cells of 7 nodes, with kernel, bias and batch norm; the head's 178.
    assert len(names) == 53 * 5 + (3 + 5 * 7) * 6 + 180 == 673
    assert names["resample_l5/conv2d/kernel"] == (1, 1, 2048, 256)
    assert names["resample_l5/bn/moving_mean"] == (256,)
    assert names[f"{_CELL}/conv/kernel"] == (3, 3, 256, 256)
    assert names[f"{_CELL}/bn/gamma"] == (256,)


def test_bottlenecks_are_numbered_and_their_inputs_squeezed():
    names = named_shapes(retinanet(schema.NasFpn(block="bottleneck")))
    scope = "fpn_cells/cell_1/sub_policy4/"
    # Node 9 reads nodes 7 and 8, and level 5 of the cell before joins it.
    assert names[f"{scope}resample_0_7_9/conv2d/kernel"] == (1, 1, 1024, 256)
    assert names[f"{scope}resample_1_8_9/bn/gamma"] == (256,)
    assert names[f"{scope}resample_fa_4_2/conv2d/bias"] == (256,)
    # The shortcut comes first.
    assert names[f"{scope}op_after_combine9/conv2d/kernel"] == (1, 1, 256, 1024)
    assert names[f"{scope}op_after_combine9/conv2d_2/kernel"] == (3, 3, 256, 256)
    assert names[f"{scope}op_after_combine9/batch_normalization_3/beta"] == (1024,)
    assert not [name for name in names if name.startswith("neck")]


@pytest.mark.parametrize("neck", [schema.RetinaNetFpn, schema.NasFpn])
def test_separable_convolutions_have_two_kernels(neck):
    names = named_shapes(retinanet(neck(depthwise=True), depthwise=True))
    assert names["retinanet/class_net/class-0/depthwise_kernel"] == (3, 3, 256, 1)
    assert names["retinanet/class_net/class-0/pointwise_kernel"] == (1, 1, 256, 256)
    if neck is schema.NasFpn:
        assert names["resample_l3/separable_conv2d/depthwise_kernel"] == (1, 1, 512, 1)
        assert names[f"{_CELL}/conv/pointwise_kernel"] == (1, 1, 256, 256)
    else:
        assert names["fpn/l3/depthwise_kernel"] == (1, 1, 512, 1)
        assert names["fpn/p7/pointwise_kernel"] == (1, 1, 256, 256)


@needs_shared
@pytest.mark.parametrize(
    ("file", "model", "count"),
    [
        ("r50fpn", retinanet(), 481),
        ("r50nasfpn5", retinanet(schema.NasFpn()), 673),
        ("r50nasfpn7", retinanet(schema.NasFpn(num_repeats=7)), 757),
    ],
)
def test_the_variables_are_exactly_those_of_the_original(file, model, count):
    ours = named_shapes(model)
    assert len(ours) == count
    assert ours == tpu_detection.golden_variables(file)


_MBCONV = retinanet(schema.Identity(), schema.SPINENET_MBCONV_SIZES["49"], depth=48, depthwise=True)


def _spinenet(size, **head):
    return retinanet(schema.Identity(), schema.SPINENET_SIZES[size], **head)


@needs_shared
@pytest.mark.parametrize(
    ("name", "model", "count"),
    [
        ("spinenet49S", _spinenet("49S", depth=128), 830),
        ("spinenet49", _spinenet("49"), 830),
        pytest.param("spinenet96", _spinenet("96"), 1065, marks=pytest.mark.slow),
        pytest.param("spinenet143", _spinenet("143"), 1300, marks=pytest.mark.slow),
        ("spinenet190", _spinenet("190", depth=512, layers_before=7), 1667),
        ("spinenet-mbconv49", _MBCONV, 857),
    ],
)
def test_every_variable_of_the_original_is_named_with_its_shape(name, model, count):
    theirs = golden_variables(name)
    assert len(theirs) == count
    assert named_shapes(model) == theirs


def test_scopes_number_their_own_layers():
    names = dict(
        zip(tpu_detection.shapes(_spinenet("96")), named_shapes(_spinenet("96")), strict=True)
    )
    assert names["backbone.stem.kernel"] == "spinenet/conv2d/kernel"
    # Two groups of two blocks: 0 is the stem, 1 the projection, 2 to 7 and 8 to 13 the blocks.
    assert names["backbone.node_0.block_1.shortcut.kernel"] == "spinenet/conv2d_1/kernel"
    assert names["backbone.node_1.block_2.conv_3.norm.var"] == (
        "spinenet/batch_normalization_13/moving_variance"
    )
    assert names["backbone.endpoint_3.kernel"] == "spinenet/conv2d_14/kernel"
    assert names["backbone.node_3.resample_1.halve.kernel"] == (
        "spinenet/sub_policy1/resample_with_alpha_resample_1_1/conv2d_1/kernel"
    )
    assert names["backbone.node_3.group.block_2.conv_1.kernel"] == (
        "spinenet/sub_policy1/scale_permuted_block_3/conv2d_2/kernel"
    )


def test_depthwise_layers_and_gates_count_for_themselves():
    names = dict(zip(tpu_detection.shapes(_MBCONV), named_shapes(_MBCONV), strict=True))
    block = "spinenet_mbconv/sub_policy2/scale_permuted_block_4"
    ours = "backbone.node_4.group.block_1"
    assert names[f"{ours}.depthwise.kernel"] == f"{block}/depthwise_conv2d/depthwise_kernel"
    assert names[f"{ours}.excite.bias"] == f"{block}/conv2d_2/bias"
    # A gate has no batch norm, so the third convolution has the third of those.
    assert names[f"{ours}.project.kernel"] == f"{block}/conv2d_3/kernel"
    assert names[f"{ours}.project.norm.scale"] == f"{block}/batch_normalization_2/gamma"
    assert names["backbone.node_4.resample_0.halve_2.kernel"] == (
        "spinenet_mbconv/sub_policy2/resample_with_sepconv_resample_2_0"
        "/depthwise_conv2d_1/depthwise_kernel"
    )


MODEL = schema.OneStage(
    num_classes=2,
    resizer=schema.FixedShapeResizer(height=256, width=256),
    backbone=schema.EfficientNetLite(width_coefficient=0.25, depth_coefficient=1.1),
    neck=schema.BiFpn(depth=8, num_repeats=1),
    head=schema.WeightSharedHead(depth=8, layers_before=0, depthwise=True),
    anchors=schema.MultiscaleAnchors(),
)


@pytest.fixture(scope="module")
def lite_shapes():
    _, params, stats = abstract_detector(MODEL, "float32")
    return params | stats


def names(table, lite_shapes):
    given = names_under(table.roots["classification"][-1], table, MODEL, lite_shapes)
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
def test_blocks_are_numbered_through_all_stacks(library, lite_shapes):
    table, expected, root = EXPECTED[library]
    given = names(table, lite_shapes)
    assert {path: root + name for path, name in expected.items()}.items() <= given.items()
    # The stem, and three layers of every block but the first, which has two.
    assert len(given) == 5 * (1 + 3 * 21 - 1)
    assert len(set(given.values())) == len(given)


def drawn(table, lite_shapes):
    """Random arrays in our layout, by name."""
    rng = np.random.default_rng(0)
    given = names_under(table.roots["classification"][-1], table, MODEL, lite_shapes)
    return {
        name: (path, rng.uniform(0.5, 1, lite_shapes[path].shape).astype(np.float32))
        for path, name in given.items()
    }


def read_backbone(lite_shapes, path):
    report, arrays = read_weights(lite_shapes, MODEL, path, ImportOptions(scope="classification"))
    assert not report.missing and not report.mismatched
    return report, arrays


def test_a_checkpoint_of_tensorflow_loads_the_backbone(tmp_path, lite_shapes):
    held = drawn(TENSORFLOW, lite_shapes)
    rest = {"efficientnet-lite4/head/conv2d/kernel", "efficientnet-lite4/head/dense/bias"}
    empty = dict.fromkeys(rest, np.zeros(1, np.float32))
    write_checkpoint(tmp_path / "m", {name: array for name, (_, array) in held.items()} | empty)
    report, arrays = read_backbone(lite_shapes, tmp_path / "m")
    assert set(report.skipped) == rest
    assert set(report.skipped.values()) == {
        "layer behind the last that this model uses",
        "classifier's logits",
    }
    for path, array in held.values():
        np.testing.assert_array_equal(arrays[path], array)


def test_depthwise_kernels_of_torch_have_their_channels_first(tmp_path, lite_shapes):
    held = drawn(TORCH, lite_shapes)
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
    report, arrays = read_backbone(lite_shapes, tmp_path / "m.pth")
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
    """Installs a package of weights with code that must not run, as pip leaves it."""
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
    assert find_weights("ours") == resolve_weights("ours") == path
    assert np.array_equal(open_weights("ours").arrays["w"], [1, 1])
    assert "own_weights" not in sys.modules
    path.unlink()
    assert find_weights("ours") is None


def test_a_package_that_is_absent_or_of_another_version_is_named(install):
    with pytest.raises(UserError) as caught:
        resolve_weights("ours")
    assert "own-weights==1.0" in caught.value.fix
    install("1.1")
    assert find_weights("ours") is None
