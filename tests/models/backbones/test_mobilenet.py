"""MobileNet v1: names, widths, taps.

MobileNet v2: widths, taps, residuals, padding.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.backbones.mobilenet import MobileNetV1Backbone, MobileNetV2Backbone
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


_NORM = schema.BatchNorm(scale=True)
_V2_CONFIG = schema.MobileNetV2(conv=schema.ConvHyperparams(activation="relu6", batch_norm=_NORM))


def _build_v2(taps, **fields):
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    return MobileNetV2Backbone(replace(_V2_CONFIG, **fields), taps, options)


def test_the_whole_network_has_the_published_number_of_parameters():
    # The paper's 3.4 million less a classifier of 1280 * 1000 + 1000 weights.
    backbone = _build_v2(("conv_1",))
    sizes = [p.size for p in jax.tree.leaves(nnx.state(backbone, nnx.Param))]
    assert sum(sizes) == 2_223_872
    statistics = [p.size for p in jax.tree.leaves(nnx.state(backbone, nnx.BatchStat))]
    assert sum(statistics) == 34_112


@pytest.mark.parametrize(
    ("multiplier", "min_depth", "channels"),
    [
        (1.0, 16, (32, 24, 576, 1280)),
        # 24 and 18 round to 16 and 24: 16 would be less than nine tenths of 18. Six times 96 * .75.
        (0.75, 16, (24, 24, 432, 960)),
        # 11.2 -> 8, floor 16; 8.4 -> 8, floor 16; 96 * .35 = 33.6 -> 32, six times; 448.
        (0.35, 16, (16, 16, 192, 448)),
        (0.35, 8, (16, 8, 192, 448)),
    ],
)
def test_widths_are_rounded_to_multiples_of_eight(multiplier, min_depth, channels):
    taps = ("conv_0", "block_2", "block_13_expand", "conv_1")
    backbone = _build_v2(taps, depth_multiplier=multiplier, min_depth=min_depth)
    assert backbone.channels == channels


def test_the_last_convolution_may_be_thinner():
    assert _build_v2(("conv_1",), last_depth=256).channels == (256,)


def test_taps_have_their_strides():
    names = ("block_2", "block_5", "block_12", "block_13_expand", "conv_1")
    backbone = _build_v2(names)
    images = jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)
    taps = jax.eval_shape(lambda x: backbone(x, train=False), images)
    sides = [(16, 24), (8, 12), (4, 6), (4, 6), (2, 3)]
    assert [t.shape[1:3] for t in taps] == sides
    assert tuple(t.shape[3] for t in taps) == backbone.channels


def test_a_block_adds_its_input_only_if_shapes_agree():
    backbone = _build_v2(("block_1", "block_2", "block_3"), depth_multiplier=0.35)
    for block in (2, 3):
        layer = getattr(backbone, f"block_{block}_project")
        layer.kernel[...] = jnp.zeros_like(layer.kernel[...])
    images = jnp.asarray(np.random.default_rng(0).normal(size=(1, 64, 64, 3)), jnp.float32)
    before, same, strided = backbone(images, train=False)
    # Nothing comes through a kernel of zeros, so what comes out is what was added.
    np.testing.assert_array_equal(same, before)
    np.testing.assert_array_equal(strided, np.zeros_like(strided))


def test_projections_are_linear():
    backbone = _build_v2(("block_0",))
    assert backbone.block_0_project.activation == "none"
    assert backbone.block_0_depthwise.activation == "relu6"
    assert not hasattr(backbone, "block_0_expand")


def test_explicit_padding_keeps_the_sizes_and_moves_the_samples():
    images = jnp.asarray(np.random.default_rng(0).normal(size=(1, 64, 64, 3)), jnp.float32)
    even = _build_v2(("block_1",))(images, train=False)[0]
    explicit = _build_v2(("block_1",), explicit_padding=True)(images, train=False)[0]
    assert explicit.shape == even.shape
    assert not np.allclose(explicit, even)


def test_layers_behind_the_last_tap_exist_on_demand():
    assert not hasattr(_build_v2(("block_2",)), "block_3_expand")
    backbone = _build_v2(("block_2",), last_layer="conv_1")
    assert hasattr(backbone, "conv_1")
    assert backbone.channels == (24,)


def test_mobilenet_v2_an_unknown_tap_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match="block_13_expand"):
        _build_v2(("block_13_expnd",))


@pytest.mark.parametrize(
    ("multiplier", "min_depth", "without"),
    [
        # Where Keras's own width is at least min_depth, no shortcut is missing.
        (1.0, 16, ()),
        (0.75, 16, ()),
        # 32 * .5 = 16 channels come into block 0, which asks for 16 * .5 = 8 and gets 16.
        (0.5, 16, (0,)),
        # Block 0 asks for int(5.6) -> 8, block 2 for int(8.4) -> 8; 16 come in. 4 and 5 ask for
        # int(11.2) = 11 -> 8, less than nine tenths, -> 16.
        (0.35, 16, (0, 2)),
        # 4 -> 8, 6 -> 8, 8; 16 come in. Block 7 asks for 16.
        (0.25, 16, (0, 2, 4, 5)),
        # Without a minimum what comes into block 0 is 32 * .25 = 8 too.
        (0.25, 8, ()),
    ],
)
def test_keras_decides_on_shortcuts_before_the_minimum(multiplier, min_depth, without):
    sizes = {"depth_multiplier": multiplier, "min_depth": min_depth}
    keras = _build_v2(("conv_1",), channels="keras", **sizes)
    # slim compares the channels that there are.
    slim = _build_v2(("conv_1",), **sizes)
    assert set(slim.residual) - set(keras.residual) == {f"block_{block}" for block in without}
    assert set(keras.residual) <= set(slim.residual)


def test_keras_rounds_down_first_and_never_widens_the_last_convolution():
    taps = ("conv_0", "block_0", "conv_1")
    # 32 * .56 = 17.92 -> 16, less than nine tenths, -> 24; int(16 * .56) = int(8.96) = 8.
    backbone = _build_v2(taps, channels="keras", depth_multiplier=0.56, min_depth=8)
    assert backbone.channels == (24, 8, 720)
    # slim takes 8.96 -> 8, less than nine tenths, -> 16. Of 1280 * .56 = 716.8 both make 720.
    assert _build_v2(taps, depth_multiplier=0.56, min_depth=8).channels == (24, 16, 720)
    # 32 * 1.4 = 44.8 -> 48; int(22.4) -> 24; 1280 and not 1792.
    assert _build_v2(taps, channels="keras", depth_multiplier=1.4).channels == (
        48,
        24,
        1280,
    )
