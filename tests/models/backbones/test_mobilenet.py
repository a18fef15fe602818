"""MobileNet v1: names, widths, taps.

MobileNet v2: widths, taps, residuals, padding.
"""

from dataclasses import replace
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models.backbones.efficientnet import EfficientNetBackbone
from stillbox.models.backbones.mobiledet import mobiledet, mobiledet_blocks
from stillbox.models.backbones.mobilenet import MobileNetV1Backbone, MobileNetV2Backbone
from stillbox.models.backbones.mobilenet_v3 import Block, Gate, MobileBlock, hard_sigmoid
from stillbox.models.build import abstract_detector
from stillbox.models.layers.hyperparams import ShapesOnly
from tests.helpers import build_options, parts_of

_CONFIG = schema.MobileNetV1(conv=schema.ConvHyperparams(batch_norm=schema.BatchNorm()))


def _build(taps, **fields):
    return MobileNetV1Backbone(replace(_CONFIG, **fields), taps, build_options())


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
    assert parts_of(backbone)["conv_13_depthwise"].kernel.shape == (3, 3, channels[2], 1)


def test_taps_have_the_requested_order_and_their_strides():
    backbone = _build(("conv_5_pointwise", "conv_1_depthwise", "conv_3_depthwise"))
    images = jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)
    taps = jax.eval_shape(lambda x: backbone(x, train=False), images)
    assert [t.shape for t in taps] == [(2, 8, 12, 256), (2, 32, 48, 32), (2, 16, 24, 128)]


def test_no_layer_is_built_behind_the_last_tap():
    backbone = _build(("conv_2_pointwise",))
    assert "conv_2_pointwise" in parts_of(backbone)
    assert "conv_3_depthwise" not in parts_of(backbone)


def test_an_unknown_tap_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match="conv_13_pointwise"):
        _build(("conv_13_pointwize",))


_NORM = schema.BatchNorm(scale=True)
_V2_CONFIG = schema.MobileNetV2(conv=schema.ConvHyperparams(activation="relu6", batch_norm=_NORM))


def _build_v2(taps, **fields):
    return MobileNetV2Backbone(replace(_V2_CONFIG, **fields), taps, build_options())


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
        layer = parts_of(backbone)[f"block_{block}_project"]
        layer.kernel[...] = jnp.zeros_like(layer.kernel[...])
    images = jnp.asarray(np.random.default_rng(0).normal(size=(1, 64, 64, 3)), jnp.float32)
    before, same, strided = backbone(images, train=False)
    # Nothing comes through a kernel of zeros, so what comes out is what was added.
    np.testing.assert_array_equal(same, before)
    np.testing.assert_array_equal(strided, np.zeros_like(strided))


def test_projections_are_linear():
    backbone = _build_v2(("block_0",))
    assert parts_of(backbone)["block_0_project"].activation == "none"
    assert parts_of(backbone)["block_0_depthwise"].activation == "relu6"
    assert "block_0_expand" not in parts_of(backbone)


def test_explicit_padding_keeps_the_sizes_and_moves_the_samples():
    images = jnp.asarray(np.random.default_rng(0).normal(size=(1, 64, 64, 3)), jnp.float32)
    even = _build_v2(("block_1",))(images, train=False)[0]
    explicit = _build_v2(("block_1",), explicit_padding=True)(images, train=False)[0]
    assert explicit.shape == even.shape
    assert not np.allclose(explicit, even)


def test_layers_behind_the_last_tap_exist_on_demand():
    assert "block_3_expand" not in parts_of(_build_v2(("block_2",)))
    backbone = _build_v2(("block_2",), last_layer="conv_1")
    assert "conv_1" in parts_of(backbone)
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
    assert set(slim.sums) - set(keras.sums) == {f"block_{block}" for block in without}
    assert set(keras.sums) <= set(slim.sums)


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


# ---- MobileNet v3: published sizes, gates, activations, taps -------------------------------------


_SHAPES = build_options(freeze_norm=True, rng=ShapesOnly())
_PLAIN = schema.ConvHyperparams(initializer=schema.VarianceScaling())


def _build_mobilenet_v3(config, *taps):
    return nnx.eval_shape(lambda: implementation_of(config)(config, taps, _SHAPES))


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # torchvision's networks of 5,483,032 and 2,542,856 parameters, less the 2,511,080 and
        # 1,615,848 of two layers on the mean: 960 * 1280 + 1280 + 1280 * 1000 + 1000 and
        # 576 * 1024 + 1024 + 1024 * 1000 + 1000.
        (schema.MobileNetV3Large(end_multiplier=1.0), 2_971_952),
        (schema.MobileNetV3Small(end_multiplier=1.0), 927_008),
    ],
)
def test_a_classifier_s_network_has_the_published_number_of_parameters(config, parameters):
    state = nnx.state(_build_mobilenet_v3(config, "conv_1"), nnx.Param)
    assert sum(param.size for param in jax.tree.leaves(state)) == parameters


@pytest.mark.parametrize(
    "config", [schema.MobileNetV3Large(), schema.MobileNetV3Small(), schema.MobileNetEdgeTpu()]
)
def test_every_layer_can_be_tapped_and_levels_have_their_strides(config):
    backbone = _build_mobilenet_v3(config, *config.layers)
    images = jax.ShapeDtypeStruct((1, 96, 64, 3), jnp.float32)
    maps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    assert tuple(tap.shape[3] for tap in maps) == backbone.channels
    shapes = dict(zip(config.layers, (tap.shape[1:3] for tap in maps), strict=True))
    assert {level: shapes[name] for level, name in config.levels.items()} == {
        2: (24, 16),
        3: (12, 8),
        4: (6, 4),
        5: (3, 2),
    }


def test_nothing_is_built_behind_the_last_tap():
    backbone = _build_mobilenet_v3(schema.MobileNetV3Small(), "block_2", "block_3_expand")
    assert backbone.channels == (24, 96)
    assert "block_3.expand" in parts_of(backbone)
    assert "block_3.depthwise" not in parts_of(backbone)
    assert "block_4" not in parts_of(backbone)


def test_the_minimalistic_form_has_small_kernels_and_no_gates():
    config = schema.MobileNetV3Large(minimalistic=True)
    backbone = _build_mobilenet_v3(config, "conv_1")
    assert not [path for path in parts_of(backbone) if "squeeze" in path]
    assert backbone.blocks[13].depthwise.kernel.shape == (3, 3, 480, 1)


def test_only_the_later_blocks_have_the_configured_activation():
    backbone = _build_mobilenet_v3(schema.MobileNetV3Large(), "conv_1")
    assert [parts_of(backbone)[f"block_{k}"].depthwise.activation for k in range(15)] == (
        ["relu"] * 6 + ["hard_swish"] * 9
    )
    assert (
        parts_of(backbone)["conv_0"].activation
        == parts_of(backbone)["conv_1"].activation
        == "hard_swish"
    )


def test_a_gate_scales_channels_by_what_it_makes_of_their_means():
    gate = Gate(3, "relu", hard_sigmoid)
    block = MobileBlock(
        Block(4, 4, 4, "none", 1, gate=gate), _PLAIN, _PLAIN, build_options(freeze_norm=True)
    )
    for layer, kernel in ((block.depthwise, np.ones((1, 1, 4, 1))), (block.project, np.eye(4))):
        layer.kernel[...] = jnp.asarray(kernel, jnp.float32).reshape(layer.kernel.shape)
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 4)).astype(np.float32)
    squeezed = np.maximum(x.mean(axis=(1, 2)) @ parts_of(block)["squeeze"].kernel[...][0, 0], 0)
    factors = np.clip(squeezed @ parts_of(block)["excite"].kernel[...][0, 0] + 3, 0, 6) / 6
    # Input and output have one shape: there is a shortcut.
    expected = x + x * factors[:, None, None]
    _, got = block(x, train=False)
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_the_hard_sigmoid_has_slim_s_rounded_sixth():
    values = hard_sigmoid(jnp.array([-4.0, 0.0, 1.5, 5.0]))
    np.testing.assert_allclose(values, [0, 0.50001, 0.750015, 1.00002], rtol=1e-6)


ALL = (
    schema.MobileDetCpu(),
    schema.MobileDetGpu(),
    schema.MobileDetDsp(),
    schema.MobileDetEdgeTpu(),
)
KINDS = [config.kind for config in ALL]


@pytest.mark.parametrize("config", ALL, ids=KINDS)
def test_mobiledet_every_layer_can_be_tapped_and_levels_have_their_strides(config):
    taps = config.layers
    backbone = nnx.eval_shape(lambda: mobiledet(config, taps, _SHAPES))
    images = jax.ShapeDtypeStruct((1, 96, 64, 3), jnp.float32)
    maps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    assert tuple(tap.shape[3] for tap in maps) == backbone.channels
    shapes = dict(zip(taps, (tap.shape[1:3] for tap in maps), strict=True))
    assert {level: shapes[name] for level, name in config.levels.items()} == {
        2: (24, 16),
        3: (12, 8),
        4: (6, 4),
        5: (3, 2),
    }
    for level in (2, 3, 4):
        following = taps[taps.index(config.levels[level]) + 1]
        assert shapes[following] != shapes[config.levels[level]]


@pytest.mark.parametrize(
    ("config", "forms", "gates"),
    [
        # Counted in the original's definitions.
        (ALL[0], {"inverted": 19}, 19),
        (ALL[1], {"inverted": 1, "fused": 17, "tucker": 4}, 0),
        (ALL[2], {"inverted": 12, "fused": 8, "tucker": 2}, 0),
        (ALL[3], {"inverted": 11, "fused": 10, "tucker": 1}, 0),
    ],
    ids=KINDS,
)
def test_each_kind_of_hardware_has_its_forms_of_blocks(config, forms, gates):
    blocks = mobiledet_blocks(config)
    assert {form: sum(block.form == form for block in blocks) for form in forms} == forms
    assert len(blocks) == sum(forms.values())
    assert sum(block.gate is not None for block in blocks) == gates


def test_ties_between_widths_fall_as_in_float32():
    # 240 * .35 is 84; the float32 next to .35 is below it, so that 80 is nearer than 88.
    assert mobiledet_blocks(schema.MobileDetDsp(depth_multiplier=0.35))[-1].channels == 80
    assert mobiledet_blocks(schema.MobileDetDsp())[-1].channels == 240


def test_depthwise_kernels_are_drawn_for_a_single_input():
    config = schema.MobileDetCpu(depth_multiplier=0.5)
    backbone = mobiledet(config, ("block_6",), build_options(freeze_norm=True))
    for block, size in ((5, 3), (6, 5)):
        kernel = np.asarray(parts_of(backbone)[f"block_{block}"].depthwise.kernel)
        assert kernel.shape[:2] == (size, size)
        # He's rule: the variance is 2 over the inputs of an output.
        assert kernel.std() == pytest.approx(np.sqrt(2) / size, rel=0.05)
    kernel = np.asarray(parts_of(backbone)["block_6.expand"].kernel)
    assert kernel.std() == pytest.approx(np.sqrt(2 / kernel.shape[2]), rel=0.05)


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
    backbone = EfficientNetBackbone(config, ("stack_3_block_1",), build_options())
    rates = [parts_of(backbone)[name].rate for name in backbone.names[1:]]
    # 1, 1, 1, 2, 2, 2, 1 blocks.
    np.testing.assert_allclose(rates, [0.2 * number / 10 for number in range(5)])
    assert jax.eval_shape(
        lambda x: backbone(x, train=False)[0], jax.ShapeDtypeStruct((1, 64, 64, 3), "float32")
    ).shape == (1, 4, 4, backbone.channels[0])


# ---- EfficientNet-Lite: published sizes, unscaled ends, taps -------------------------------------


SIZES = schema.EFFICIENTNET_LITE_SIZES


def build(size, *taps):
    return nnx.eval_shape(lambda: implementation_of(SIZES[size])(SIZES[size], taps, _SHAPES))


@pytest.mark.parametrize(
    ("size", "millions"),
    # tpu/models/official/efficientnet/lite/README.md.
    [("lite0", 4.7), ("lite1", 5.4), ("lite2", 6.1), ("lite3", 8.2), ("lite4", 13.0)],
)
def test_classifiers_have_the_published_number_of_parameters(size, millions):
    backbone = build(size, "stack_6_block_0")
    held = sum(prod(array.shape) for array in jax.tree.leaves(nnx.state(backbone, nnx.Param)))
    # A 1x1 convolution to 1280 channels with its norm, and a dense layer to 1000 classes.
    behind = backbone.channels[0] * 1280 + 2 * 1280 + 1280 * 1000 + 1000
    assert round((held + behind) / 1e6, 1) == millions


def test_neither_the_stem_nor_the_ends_are_scaled():
    assert build("lite4", "stem").channels == (32,)
    assert [SIZES[size].count_blocks() for size in ("lite0", "lite1", "lite4")] == [
        (1, 2, 2, 3, 3, 4, 1),
        (1, 3, 3, 4, 4, 5, 1),
        (1, 4, 4, 6, 6, 8, 1),
    ]


def test_a_level_is_the_last_block_before_the_next_stride():
    assert SIZES["lite0"].levels == schema.EFFICIENTNET_SIZES["b0"].levels
    assert list(SIZES["lite1"].levels.values()) == [
        *("stack_0_block_0", "stack_1_block_2", "stack_2_block_2"),
        *("stack_4_block_3", "stack_6_block_0"),
    ]


def test_a_block_has_no_gate_and_is_activated_by_relu6():
    block = build("lite0", "stack_1_block_0").blocks["stack_1_block_0"]
    assert "squeeze" not in parts_of(block)
    assert SIZES["lite0"].conv.activation == "relu6"
