"""TensorFlow's names of RetinaNet's pyramids and heads."""

import pytest

from stillbox.experiment import schema
from tests import tpu_detection
from tests.shared import needs_shared
from tests.tpu_detection import named_shapes, retinanet

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
