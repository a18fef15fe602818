"""EfficientNet: sizes of the family, taps and the depth of blocks that are left out.

Its numbers are compared with the executed original in tests/proofs/test_ssd_zoo_goldens.py.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.abstract import abstract_detector
from stillbox.models.backbones.efficientnet import EfficientNetBackbone
from stillbox.models.parts import BuildOptions


@pytest.mark.parametrize(
    ("size", "depth", "repeats", "tower", "millions"),
    # D0 and D4 as published (table 1 of arXiv:1911.09070).
    [("b0", 64, 3, 3, 3.9), pytest.param("b4", 224, 7, 4, 20.7, marks=pytest.mark.slow)],
)
def test_detectors_have_the_published_number_of_parameters(size, depth, repeats, tower, millions):
    backbone = schema.EFFICIENTNET_SIZES[size]
    conv = schema.ConvHyperparams(batch_norm=schema.BatchNorm(scale=True), force_bias=True)
    head = schema.WeightSharedHead(depth=depth, layers_before=tower, depthwise=True, conv=conv)
    model = schema.OneStage(
        num_classes=90,
        background_class=False,
        resizer=schema.FixedShapeResizer(height=256, width=256),
        backbone=replace(backbone, last_layer=backbone.layers[-1]),
        neck=schema.BiFpn(depth=depth, num_repeats=repeats),
        head=head,
        anchors=schema.MultiscaleAnchors(scales_per_octave=3),
    )
    _, params, _ = abstract_detector(model, "float32")
    assert round(sum(array.size for array in params.values()) / 1e6, 1) == millions


def test_larger_networks_are_tapped_where_the_smallest_is():
    b1 = schema.EFFICIENTNET_SIZES["b1"]
    assert b1.count_blocks() == (2, 3, 3, 4, 4, 5, 2)
    assert list(b1.levels.values()) == [
        *("stack_0_block_0", "stack_1_block_1", "stack_2_block_1"),
        *("stack_4_block_2", "stack_6_block_0"),
    ]
    narrow = schema.EfficientNet(depth_coefficient=0.3)
    assert set(narrow.levels.values()) <= set(narrow.layers)


def test_later_blocks_are_left_out_more_often():
    config = schema.EfficientNet(width_coefficient=0.25, depth_coefficient=0.5)
    options = BuildOptions(dtype="float32", freeze_norm=False, rng=np.random.default_rng(0))
    backbone = EfficientNetBackbone(config, ("stack_3_block_1",), options)
    rates = [getattr(backbone, name).rate for name in backbone.names[1:]]
    # 1, 1, 1, 2, 2, 2, 1 blocks.
    np.testing.assert_allclose(rates, [0.2 * number / 10 for number in range(5)])
    assert jax.eval_shape(
        lambda x: backbone(x, train=False)[0], jax.ShapeDtypeStruct((1, 64, 64, 3), "float32")
    ).shape == (1, 4, 4, backbone.channels[0])
