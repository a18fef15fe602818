"""MobileNet v1: names, widths, taps."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.backbones.mobilenet_v1 import MobileNetV1Backbone
from stillbox.models.parts import BuildOptions

_CONFIG = schema.MobileNetV1(conv=schema.ConvHyperparams(batch_norm=schema.BatchNorm()))


def _build(taps, **fields):
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    return MobileNetV1Backbone(replace(_CONFIG, **fields), taps, options)


@pytest.mark.parametrize(
    ("multiplier", "min_depth", "channels"),
    [
        (1.0, 16, (32, 512, 1024)),
        (0.75, 16, (24, 384, 768)),
        (0.25, 16, (16, 128, 256)),  # 32 * .25 = 8, floor 16
        (0.3, 8, (9, 153, 307)),  # 9.6, 153.6, 307.2, cut to integers
    ],
)
def test_widths_follow_multiplier_and_floor(multiplier, min_depth, channels):
    taps = ("conv_0", "conv_11_pointwise", "conv_13_pointwise")
    backbone = _build(taps, depth_multiplier=multiplier, min_depth=min_depth)
    assert backbone.channels == channels
    assert backbone.conv_13_depthwise.kernel.shape == (3, 3, channels[2], 1)


def test_taps_have_the_requested_order_and_their_strides():
    backbone = _build(("conv_5_pointwise", "conv_1_depthwise", "conv_3_depthwise"))
    images = jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)
    taps = jax.eval_shape(lambda x: backbone(x, train=False), images)
    assert [t.shape for t in taps] == [(2, 8, 12, 256), (2, 32, 48, 32), (2, 16, 24, 128)]


def test_no_layer_is_built_behind_the_last_tap():
    backbone = _build(("conv_2_pointwise",))
    assert hasattr(backbone, "conv_2_pointwise")
    assert not hasattr(backbone, "conv_3_depthwise")


def test_an_unknown_tap_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match="conv_13_pointwise"):
        _build(("conv_13_pointwize",))
