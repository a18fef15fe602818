"""SpineNet of inverted residuals ."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.backbones.scale_permuted import NodeSpec
from stillbox.models.backbones.spinenet_mbconv import (
    SeparableResample,
    SpineNetMbConvBackbone,
    _Components,
)
from tests.macs import count_macs
from tests.models.backbones.small_training import OPTIONS, train_once
from tests.tpu_detection import count_parameters, retinanet

SIZES = schema.SPINENET_MBCONV_SIZES
# Up, down by one, by two and by three levels.
_FEW = schema.SpineNetMbConv(
    blocks=(
        schema.MbConvSpineBlock(level=4),
        schema.MbConvSpineBlock(level=3, inputs=(1, 2), output=True),
        schema.MbConvSpineBlock(level=4, inputs=(2, 3), output=True),
    ),
    endpoints_depth=8,
    max_level=4,
)


def _random(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def test_the_whole_detector_has_the_originals_parameters_and_multiply_adds():
    model = retinanet(schema.Identity(), SIZES["49"], side=384, depth=48, depthwise=True)
    assert count_parameters(model) == 2_337_579
    # The figure is 0.98 billion.
    assert count_macs(model) == pytest.approx(0.98e9, rel=0.005)


@pytest.mark.parametrize(
    ("size", "widths"),
    # 8, 16, 24, 40, 80 and 112 times .65 are 5.2, 10.4, 15.6, 26, 52 and 72.8, times .6 they are
    # 4.8, 9.6, 14.4, 24, 48 and 67.2. To multiples of 8, not below 8, and not below nine tenths:
    # 10.4 and 9.6 become 16 because 8 is less than 9.36 and 8.64.
    [
        ("49", [8, 16, 24, 40, 80, 112]),
        ("49S", [8, 16, 16, 24, 56, 72]),
        ("49XS", [8, 16, 16, 24, 48, 64]),
    ],
)
def test_widths_are_multiples_of_eight(size, widths):
    config = replace(SIZES[size], blocks=_FEW.blocks, max_level=4)
    backbone = SpineNetMbConvBackbone(config, config.layers, OPTIONS)
    stem = [backbone.stem.kernel.shape[-1], backbone.node_0.channels, backbone.node_1.channels]
    assert [*stem, backbone.node_3.group.channels, backbone.node_2.group.channels] == widths[:5]
    whole = SpineNetMbConvBackbone(SIZES[size], SIZES[size].layers, OPTIONS)
    assert whole.node_17.group.channels == widths[5]


def test_levels_have_their_strides_and_one_depth():
    backbone = SpineNetMbConvBackbone(SIZES["49XS"], SIZES["49XS"].layers, OPTIONS)
    images = jax.ShapeDtypeStruct((2, 128, 256, 3), jnp.float32)
    maps = jax.eval_shape(lambda x: backbone(x, train=False), images)
    assert [m.shape for m in maps] == [(2, 128 // s, 256 // s, 24) for s in (8, 16, 32, 64, 128)]


def build_block(inputs, channels, stride=1, rate=0.0, config=_FEW):
    """Returns a block as the backbone builds them."""
    components = _Components(config, OPTIONS)
    return components._group(inputs, channels, stride=stride, rate=rate).block_1


def test_a_block_gates_its_channels_by_their_means():
    block = build_block(10, 10)
    # A fifth of the 10 channels of the input, not of the 60 inside.
    assert block.squeeze.kernel.shape == (1, 1, 60, 2)
    for layer in (block.squeeze, block.excite):
        layer.bias[...] = _random(*layer.bias.shape)
    x = _random(2, 4, 6, 10)
    inside = block.depthwise(block.expand(x, train=False), train=False)
    means = np.asarray(inside).mean(axis=(1, 2))
    narrow = means @ np.asarray(block.squeeze.kernel[0, 0]) + np.asarray(block.squeeze.bias[...])
    narrow = narrow / (1 + np.exp(-narrow))
    wide = narrow @ np.asarray(block.excite.kernel[0, 0]) + np.asarray(block.excite.bias[...])
    gated = inside / (1 + np.exp(-wide))[:, None, None]
    expected = x + block.project(gated, train=False)
    np.testing.assert_allclose(block(x, train=False), expected, rtol=1e-5, atol=1e-6)


def test_a_gate_squeezes_to_one_channel_at_least_or_is_not_there():
    assert build_block(8, 8, config=replace(_FEW, se_ratio=0.1)).squeeze.bias.shape == (1,)
    plain = build_block(8, 8, config=replace(_FEW, se_ratio=0.0))
    assert not hasattr(plain, "squeeze")
    x = _random(1, 4, 4, 8)
    inside = plain.depthwise(plain.expand(x, train=False), train=False)
    expected = x + plain.project(inside, train=False)
    np.testing.assert_allclose(plain(x, train=False), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("channels", "stride", "shortcut"), [(8, 1, True), (8, 2, False), (16, 1, False)]
)
def test_there_is_a_shortcut_where_shapes_agree(channels, stride, shortcut):
    block = build_block(8, channels, stride)
    # A last factor of 0 leaves the shortcut alone.
    block.project.norm.scale[...] = jnp.zeros(channels)
    x = _random(1, 4, 4, 8)
    y = block(x, train=False)
    assert y.shape == (1, 4 // stride, 4 // stride, channels)
    np.testing.assert_array_equal(y, x if shortcut else jnp.zeros_like(y))


def test_a_block_that_is_left_out_is_its_shortcut():
    still = replace(_FEW, conv=replace(_FEW.conv, batch_norm=schema.BatchNorm(train=False)))
    block = build_block(8, 8, rate=0.5, config=still)
    x = _random(16, 4, 4, 8)
    branch = block(x, train=False) - x
    y = block(x, train=True, dropout_key=jax.random.key(1))
    left_out = np.array([np.array_equal(after, before) for after, before in zip(y, x, strict=True)])
    assert 0 < left_out.sum() < 16
    expected = jnp.where(left_out[:, None, None, None], x, x + branch / 0.5)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="dropout_key"):
        block(x, train=True)


def test_later_blocks_are_left_out_more_often():
    config = replace(_FEW, drop_connect_rate=0.6)
    backbone = SpineNetMbConvBackbone(config, config.layers, OPTIONS)
    rates = [getattr(backbone, f"node_{number}").group.block_1.rate for number in range(2, 5)]
    # init * (i + 1) / 3 for the blocks 0 to 2; none for the stem.
    np.testing.assert_allclose(rates, [0.2, 0.4, 0.6])
    assert backbone.node_0.block_1.rate == 0


@pytest.mark.parametrize(("level", "halves"), [(2, 0), (3, 1), (6, 4)])
def test_the_way_down_is_a_depthwise_convolution_for_each_level(level, halves):
    way = SeparableResample(NodeSpec(2, "mbconv", 4), NodeSpec(level, "mbconv", 6), _FEW, OPTIONS)
    assert [f"halve_{step}" for step in range(1, 6) if hasattr(way, f"halve_{step}")] == [
        f"halve_{step}" for step in range(1, halves + 1)
    ]
    image = jax.ShapeDtypeStruct((1, 32, 64, 4), jnp.float32)
    shape = jax.eval_shape(lambda x: way(x, train=False), image).shape
    assert shape == (1, 32 >> halves, 64 >> halves, 6)


def test_the_way_up_repeats_pixels():
    way = SeparableResample(NodeSpec(5, "mbconv", 4), NodeSpec(3, "mbconv", 6), _FEW, OPTIONS)
    x = _random(1, 2, 3, 4)
    few = way.match(x, train=False)
    repeated = jnp.repeat(jnp.repeat(few, 4, axis=1), 4, axis=2)
    np.testing.assert_allclose(way(x, train=False), repeated, rtol=1e-6)


def test_depthwise_kernels_have_a_separate_initializer():
    block = build_block(16, 16)
    # Glorot's uniform one: 9 * 96 values come in and 9 go out.
    kernel, limit = np.abs(block.depthwise.kernel[...]), np.sqrt(6 / (9 * 96 + 9))
    assert 0.95 * limit < kernel.max() <= limit


@pytest.mark.slow
def test_training_in_bfloat16_moves_every_array():
    train_once(SpineNetMbConvBackbone, _FEW, jnp.bfloat16)


def test_maps_have_the_type_of_the_products():
    for dtype in (jnp.float32, jnp.bfloat16):
        backbone = SpineNetMbConvBackbone(_FEW, _FEW.layers, replace(OPTIONS, dtype=dtype))
        image = jax.ShapeDtypeStruct((1, 32, 32, 3), dtype)
        maps = jax.eval_shape(lambda x, part=backbone: part(x, train=False), image)
        assert [m.dtype for m in maps] == [dtype, dtype]
