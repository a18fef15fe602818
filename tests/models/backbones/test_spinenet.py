"""SpineNet against the original's figures and the graph as it ran .

SpineNet of inverted residuals .
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.backbones.spinenet import (
    NodeSpec,
    Resample,
    SeparableResample,
    _MbconvComponents,
    spinenet,
    spinenet_mbconv,
)
from stillbox.models.variables import bind_detector, split_detector
from tests.helpers import parts_of
from tests.models.backbones.small_training import OPTIONS, train_once
from tests.small import needs_shared
from tests.tpu_detection import count_macs, count_parameters, golden, pixels, retinanet, weighted

SIZES = schema.SPINENET_SIZES
# One block of each kind, up, down by one and by two levels, a residual one that joins an output.
_FEW = schema.SpineNet(
    blocks=(
        schema.SpineBlock(level=4, block="residual"),
        schema.SpineBlock(level=3, inputs=(0, 2)),
        schema.SpineBlock(level=4, block="residual", inputs=(2, 3), output=True),
        schema.SpineBlock(level=3, block="residual", inputs=(1, 4)),
        schema.SpineBlock(level=3, block="residual", inputs=(3, 4), output=True),
    ),
    filter_scale=0.125,
    endpoints_depth=8,
    max_level=4,
)


def _model(size, side, **head):
    return retinanet(schema.Identity(), SIZES[size], side=side, **head)


@pytest.mark.parametrize(
    ("size", "side", "head", "parameters", "billions"),
    [
        ("49S", 640, {"depth": 128}, 11_265_942, 30.78),
        ("49", 640, {}, 28_543_383, 85.28),
        pytest.param("96", 1024, {}, 42_974_871, 265.0, marks=pytest.mark.slow),
        pytest.param("143", 1280, {}, 66_959_511, 523.3, marks=pytest.mark.slow),
        ("190", 1280, {"depth": 512, "layers_before": 7}, 163_637_351, 1881.7),
    ],
)
def test_every_size_has_the_originals_parameters_and_multiply_adds(
    size, side, head, parameters, billions
):
    model = _model(size, side, **head)
    assert count_parameters(model) == parameters
    # The figures are rounded to four or five digits.
    assert count_macs(model) == pytest.approx(billions * 1e9, rel=2e-4)


@needs_shared
def test_its_maps_equal_those_of_the_originals_graph():
    detector = weighted(_model("49", 128))
    graph, params, stats = split_detector(detector)

    def run(params, stats, x):
        return bind_detector(graph, params, stats).backbone(x, train=False)

    maps = jax.jit(run)(params, stats, pixels())
    for level, ours in zip(range(3, 8), map(np.asarray, maps), strict=True):
        theirs = golden("forward")["spinenet49_swish_128"]["b"][str(level)]
        assert list(ours.shape) == theirs["shape"]
        # Values of up to .3, sums in another order: a few units of float32's last digit there.
        moments = [ours.mean(dtype=np.float64), ours.std(dtype=np.float64), *ours.ravel()[:4]]
        expected = [theirs["mean"], theirs["std"], *theirs["first4"]]
        np.testing.assert_allclose(moments, expected, rtol=0, atol=1e-7)


def test_levels_have_their_strides_and_one_depth():
    config = replace(SIZES["49S"], filter_scale=0.125)
    backbone = spinenet(config, config.layers, OPTIONS)
    assert config.levels == {level: f"level_{level}" for level in range(3, 8)}
    images = jax.ShapeDtypeStruct((2, 128, 256, 3), jnp.float32)
    maps = jax.eval_shape(lambda x: backbone(x, train=False), images)
    assert [m.shape for m in maps] == [(2, 128 // s, 256 // s, 128) for s in (8, 16, 32, 64, 128)]
    assert backbone.channels == (128,) * 5


def test_a_level_that_is_not_made_is_named():
    with pytest.raises(UserError, match="level_8"):
        spinenet(_FEW, ("level_8",), OPTIONS)


def test_widths_are_cut_to_whole_numbers():
    # 64 * .65 = 41.6, 256 * .65 = 166.4; of 41 channels .5 * 41 = 20.5 are left on the way.
    config = replace(_FEW, filter_scale=0.65)
    backbone = spinenet(config, config.layers, OPTIONS)
    assert parts_of(backbone)["node_0"].channels == 4 * 41
    node = parts_of(backbone)["node_2"]
    assert parts_of(node)["resample_0"].squeeze.kernel.shape == (1, 1, 164, 20)
    assert parts_of(node)["resample_0.expand"].kernel.shape == (1, 1, 20, 166)
    # Never to none at all.
    config = replace(_FEW, filter_scale=1e-3)
    assert spinenet(config, config.layers, OPTIONS).node_1.channels == 4


@pytest.mark.parametrize(
    ("level", "pool"), [(2, None), (3, None), (4, (3, 2)), (5, (5, 4)), (6, (5, 8))]
)
def test_the_way_down_is_one_strided_convolution_and_one_pooling(level, pool, monkeypatch):
    pools = []

    def spy(x, size, stride):
        pools.append((size, stride))
        return x[:, ::stride, ::stride]

    monkeypatch.setattr("stillbox.models.backbones.spinenet.max_pool", spy)
    places = NodeSpec(2, "residual", 6), NodeSpec(level, "residual", 4)
    way = Resample(*places, replace(_FEW, resample_alpha=1.0), OPTIONS)
    assert (way.halve is not None) == (level > 2)
    image = jax.ShapeDtypeStruct((1, 32, 64, 6), jnp.float32)
    side = jax.eval_shape(lambda x: way(x, train=False), image).shape[1]
    assert side == 32 // 2 ** (level - 2)
    assert pools == ([pool] if pool else [])


def test_the_way_up_repeats_pixels():
    way = Resample(NodeSpec(5, "bottleneck", 16), NodeSpec(3, "bottleneck", 8), _FEW, OPTIONS)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2, 3, 16)), jnp.float32)
    # Half of a quarter of 16 channels.
    assert way.squeeze.kernel.shape == (1, 1, 16, 2)
    few = way.expand(way.squeeze(x, train=False), train=False)
    np.testing.assert_allclose(
        way(x, train=False), jnp.repeat(jnp.repeat(few, 4, axis=1), 4, axis=2), rtol=1e-6
    )


def test_a_node_activates_its_sum_with_joined_maps(monkeypatch):
    backbone = spinenet(_FEW, _FEW.layers, OPTIONS)
    # Node 5 is read by nothing but the output of its kind and level, which is node 6.
    assert _FEW.joined() == ((), (), (), (), (5,))
    node = parts_of(backbone)["node_6"]
    shapes = [(2, 32), (2, 32), (4, 32), (3, 64), (4, 32), (3, 16)]
    maps = [jnp.full((1, 128 >> level, 128 >> level, c), 0.5) for level, c in shapes]
    first, second = node.resamples.values()
    total = first(maps[3], train=False) + second(maps[4], train=False) + maps[5]
    np.testing.assert_allclose(
        node(maps, train=False, dropout_key=None),
        node.group(jax.nn.swish(total), train=False),
        rtol=1e-6,
    )


def test_later_blocks_are_left_out_more_often():
    config = replace(_FEW, drop_connect_rate=0.5, repeats=2)
    backbone = spinenet(config, config.layers, OPTIONS)
    assert parts_of(backbone)["node_0.block_1"].drop_connect_rate == 0
    groups = [parts_of(backbone)[f"node_{number}"].group for number in range(2, 7)]
    rates = [
        (parts_of(g)["block_1"].drop_connect_rate, parts_of(g)["block_2"].drop_connect_rate)
        for g in groups
    ]
    # init * (i + 1) / 5 for the blocks 0 to 4.
    np.testing.assert_allclose(rates, [(rate, rate) for rate in (0.1, 0.2, 0.3, 0.4, 0.5)])


@pytest.mark.slow
def test_training_in_float32_moves_every_array():
    train_once(spinenet, _FEW, jnp.float32)


def test_maps_have_the_type_of_the_products():
    for dtype in (jnp.float32, jnp.bfloat16):
        backbone = spinenet(_FEW, _FEW.layers, replace(OPTIONS, dtype=dtype))
        image = jax.ShapeDtypeStruct((1, 32, 32, 3), dtype)
        maps = jax.eval_shape(lambda x, part=backbone: part(x, train=False), image)
        assert [m.dtype for m in maps] == [dtype, dtype]


MBCONV_SIZES = schema.SPINENET_MBCONV_SIZES
# Up, down by one, by two and by three levels.
_FEW_MBCONV = schema.SpineNetMbConv(
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
    model = retinanet(schema.Identity(), MBCONV_SIZES["49"], side=384, depth=48, depthwise=True)
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
    config = replace(MBCONV_SIZES[size], blocks=_FEW_MBCONV.blocks, max_level=4)
    backbone = spinenet_mbconv(config, config.layers, OPTIONS)
    stem = [
        backbone.stem.kernel.shape[-1],
        parts_of(backbone)["node_0"].channels,
        parts_of(backbone)["node_1"].channels,
    ]
    assert [
        *stem,
        parts_of(backbone)["node_3.group"].channels,
        parts_of(backbone)["node_2.group"].channels,
    ] == widths[:5]
    whole = spinenet_mbconv(MBCONV_SIZES[size], MBCONV_SIZES[size].layers, OPTIONS)
    assert parts_of(whole)["node_17.group"].channels == widths[5]


def test_spinenet_mbconv_levels_have_their_strides_and_one_depth():
    backbone = spinenet_mbconv(MBCONV_SIZES["49XS"], MBCONV_SIZES["49XS"].layers, OPTIONS)
    images = jax.ShapeDtypeStruct((2, 128, 256, 3), jnp.float32)
    maps = jax.eval_shape(lambda x: backbone(x, train=False), images)
    assert [m.shape for m in maps] == [(2, 128 // s, 256 // s, 24) for s in (8, 16, 32, 64, 128)]


def build_block(inputs, channels, stride=1, rate=0.0, config=_FEW_MBCONV):
    """Returns a block as the backbone builds them."""
    components = _MbconvComponents(config, OPTIONS)
    return components._group(inputs, channels, stride=stride, rate=rate).blocks[1]


def test_a_block_gates_its_channels_by_their_means():
    block = build_block(10, 10)
    # A fifth of the 10 channels of the input, not of the 60 inside.
    assert block.gate["squeeze"].kernel.shape == (1, 1, 60, 2)
    for layer in (block.gate["squeeze"], block.gate["excite"]):
        layer.bias[...] = _random(*layer.bias.shape)
    x = _random(2, 4, 6, 10)
    inside = block.depthwise(block.expand(x, train=False), train=False)
    means = np.asarray(inside).mean(axis=(1, 2))
    narrow = means @ np.asarray(block.gate["squeeze"].kernel[0, 0]) + np.asarray(
        block.gate["squeeze"].bias[...]
    )
    narrow = narrow / (1 + np.exp(-narrow))
    wide = narrow @ np.asarray(block.gate["excite"].kernel[0, 0]) + np.asarray(
        block.gate["excite"].bias[...]
    )
    gated = inside / (1 + np.exp(-wide))[:, None, None]
    expected = x + block.project(gated, train=False)
    np.testing.assert_allclose(block(x, train=False), expected, rtol=1e-5, atol=1e-6)


def test_a_gate_squeezes_to_one_channel_at_least_or_is_not_there():
    assert build_block(8, 8, config=replace(_FEW_MBCONV, se_ratio=0.1)).gate[
        "squeeze"
    ].bias.shape == (1,)
    plain = build_block(8, 8, config=replace(_FEW_MBCONV, se_ratio=0.0))
    assert "squeeze" not in parts_of(plain)
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
    still = replace(
        _FEW_MBCONV,
        conv=replace(_FEW_MBCONV.conv, batch_norm=schema.BatchNorm(train=False)),
    )
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


def test_spinenet_mbconv_later_blocks_are_left_out_more_often():
    config = replace(_FEW_MBCONV, drop_connect_rate=0.6)
    backbone = spinenet_mbconv(config, config.layers, OPTIONS)
    rates = [parts_of(backbone)[f"node_{number}.group.block_1"].rate for number in range(2, 5)]
    # init * (i + 1) / 3 for the blocks 0 to 2; none for the stem.
    np.testing.assert_allclose(rates, [0.2, 0.4, 0.6])
    assert parts_of(backbone)["node_0.block_1"].rate == 0


@pytest.mark.parametrize(("level", "halves"), [(2, 0), (3, 1), (6, 4)])
def test_the_way_down_is_a_depthwise_convolution_for_each_level(level, halves):
    way = SeparableResample(
        NodeSpec(2, "mbconv", 4), NodeSpec(level, "mbconv", 6), _FEW_MBCONV, OPTIONS
    )
    assert [f"halve_{step}" for step in range(1, 6) if f"halve_{step}" in parts_of(way)] == [
        f"halve_{step}" for step in range(1, halves + 1)
    ]
    image = jax.ShapeDtypeStruct((1, 32, 64, 4), jnp.float32)
    shape = jax.eval_shape(lambda x: way(x, train=False), image).shape
    assert shape == (1, 32 >> halves, 64 >> halves, 6)


def test_spinenet_mbconv_the_way_up_repeats_pixels():
    way = SeparableResample(
        NodeSpec(5, "mbconv", 4), NodeSpec(3, "mbconv", 6), _FEW_MBCONV, OPTIONS
    )
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
    train_once(spinenet_mbconv, _FEW_MBCONV, jnp.bfloat16)


def test_spinenet_mbconv_maps_have_the_type_of_the_products():
    for dtype in (jnp.float32, jnp.bfloat16):
        backbone = spinenet_mbconv(_FEW_MBCONV, _FEW_MBCONV.layers, replace(OPTIONS, dtype=dtype))
        image = jax.ShapeDtypeStruct((1, 32, 32, 3), dtype)
        maps = jax.eval_shape(lambda x, part=backbone: part(x, train=False), image)
        assert [m.dtype for m in maps] == [dtype, dtype]
