"""MobileNet v3: published sizes, gates, activations, taps.

MobileDet: taps, forms of blocks, initialisers.

EfficientNet: sizes of the family, taps and the depth of blocks that are left out.

Its numbers are compared with the executed original in tests/proofs/test_ssd_zoo_goldens.py.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models.backbones.efficientnet import EfficientNetBackbone
from stillbox.models.backbones.mobiledet import MobileDetBackbone, mobiledet_blocks
from stillbox.models.backbones.mobilenet_v3 import Block, Gate, MobileBlock, hard_sigmoid
from stillbox.models.build import abstract_detector
from stillbox.models.layers.hyperparams import ShapesOnly
from stillbox.models.parts import BuildOptions

_SHAPES = BuildOptions(dtype=jnp.float32, freeze_norm=True, rng=ShapesOnly())
_PLAIN = schema.ConvHyperparams(initializer=schema.VarianceScaling())


def _build(config, *taps):
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
    state = nnx.state(_build(config, "conv_1"), nnx.Param)
    assert sum(param.size for param in jax.tree.leaves(state)) == parameters


@pytest.mark.parametrize(
    "config", [schema.MobileNetV3Large(), schema.MobileNetV3Small(), schema.MobileNetEdgeTpu()]
)
def test_every_layer_can_be_tapped_and_levels_have_their_strides(config):
    backbone = _build(config, *config.layers)
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
    backbone = _build(schema.MobileNetV3Small(), "block_2", "block_3_expand")
    assert backbone.channels == (24, 96)
    assert hasattr(backbone.block_3, "expand")
    assert not hasattr(backbone.block_3, "depthwise")
    assert not hasattr(backbone, "block_4")


def test_the_minimalistic_form_has_small_kernels_and_no_gates():
    config = schema.MobileNetV3Large(minimalistic=True)
    paths = {
        ".".join(map(str, path))
        for path, _ in nnx.to_flat_state(nnx.state(_build(config, "conv_1")))
    }
    assert not [path for path in paths if "squeeze" in path]
    assert _build(config, "conv_1").block_13.depthwise.kernel.shape == (3, 3, 480, 1)


def test_only_the_later_blocks_have_the_configured_activation():
    backbone = _build(schema.MobileNetV3Large(), "conv_1")
    assert [getattr(backbone, f"block_{k}").depthwise.activation for k in range(15)] == (
        ["relu"] * 6 + ["hard_swish"] * 9
    )
    assert backbone.conv_0.activation == backbone.conv_1.activation == "hard_swish"


def test_a_gate_scales_channels_by_what_it_makes_of_their_means():
    options = BuildOptions(dtype=jnp.float32, freeze_norm=True, rng=np.random.default_rng(0))
    gate = Gate(3, "relu", hard_sigmoid)
    block = MobileBlock(Block(4, 4, 4, "none", 1, gate=gate), _PLAIN, _PLAIN, options)
    for layer, kernel in ((block.depthwise, np.ones((1, 1, 4, 1))), (block.project, np.eye(4))):
        layer.kernel[...] = jnp.asarray(kernel, jnp.float32).reshape(layer.kernel.shape)
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 4)).astype(np.float32)
    squeezed = np.maximum(x.mean(axis=(1, 2)) @ block.squeeze.kernel[...][0, 0], 0)
    factors = np.clip(squeezed @ block.excite.kernel[...][0, 0] + 3, 0, 6) / 6
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
    backbone = nnx.eval_shape(lambda: MobileDetBackbone(config, taps, _SHAPES))
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
    options = BuildOptions(dtype=jnp.float32, freeze_norm=True, rng=np.random.default_rng(0))
    backbone = MobileDetBackbone(config, ("block_6",), options)
    for block, size in ((5, 3), (6, 5)):
        kernel = np.asarray(getattr(backbone, f"block_{block}").depthwise.kernel)
        assert kernel.shape[:2] == (size, size)
        # He's rule: the variance is 2 over the inputs of an output.
        assert kernel.std() == pytest.approx(np.sqrt(2) / size, rel=0.05)
    kernel = np.asarray(backbone.block_6.expand.kernel)
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
    options = BuildOptions(dtype="float32", freeze_norm=False, rng=np.random.default_rng(0))
    backbone = EfficientNetBackbone(config, ("stack_3_block_1",), options)
    rates = [getattr(backbone, name).rate for name in backbone.names[1:]]
    # 1, 1, 1, 2, 2, 2, 1 blocks.
    np.testing.assert_allclose(rates, [0.2 * number / 10 for number in range(5)])
    assert jax.eval_shape(
        lambda x: backbone(x, train=False)[0], jax.ShapeDtypeStruct((1, 64, 64, 3), "float32")
    ).shape == (1, 4, 4, backbone.channels[0])
