"""TensorFlow's names of SpineNet, for complete detectors."""

import pytest

from stillbox.experiment import schema
from tests import tpu_detection
from tests.shared import needs_shared
from tests.tpu_detection import golden_variables, named_shapes, retinanet

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
