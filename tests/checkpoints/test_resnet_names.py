"""TensorFlow's names of ResNet and of the neck and head around it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stillbox.experiment import schema
from tests.checkpoints.resnet_arrays import backbone_shapes, named, shapes, ssd

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
