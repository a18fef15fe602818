"""SpineNet against the original's figures and the graph as it ran ."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.backbones import spinenet
from stillbox.models.backbones.scale_permuted import NodeSpec
from stillbox.models.backbones.spinenet import Resample, SpineNetBackbone
from stillbox.models.variables import bind_detector, split_detector
from tests.macs import count_macs
from tests.models.backbones.small_training import OPTIONS, train_once
from tests.shared import needs_shared
from tests.tpu_detection import count_parameters, golden, pixels, retinanet, weighted

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
    for level, own in zip(range(3, 8), map(np.asarray, maps), strict=True):
        theirs = golden("forward")["spinenet49_swish_128"]["b"][str(level)]
        assert list(own.shape) == theirs["shape"]
        # Values of up to .3, sums in another order: a few units of float32's last digit there.
        moments = [own.mean(dtype=np.float64), own.std(dtype=np.float64), *own.ravel()[:4]]
        expected = [theirs["mean"], theirs["std"], *theirs["first4"]]
        np.testing.assert_allclose(moments, expected, rtol=0, atol=1e-7)


def test_levels_have_their_strides_and_one_depth():
    config = replace(SIZES["49S"], filter_scale=0.125)
    backbone = SpineNetBackbone(config, config.layers, OPTIONS)
    assert config.levels == {level: f"level_{level}" for level in range(3, 8)}
    images = jax.ShapeDtypeStruct((2, 128, 256, 3), jnp.float32)
    maps = jax.eval_shape(lambda x: backbone(x, train=False), images)
    assert [m.shape for m in maps] == [(2, 128 // s, 256 // s, 128) for s in (8, 16, 32, 64, 128)]
    assert backbone.channels == (128,) * 5


def test_a_level_that_is_not_made_is_named():
    with pytest.raises(UserError, match="level_8"):
        SpineNetBackbone(_FEW, ("level_8",), OPTIONS)


def test_widths_are_cut_to_whole_numbers():
    # 64 * .65 = 41.6, 256 * .65 = 166.4; of 41 channels .5 * 41 = 20.5 are left on the way.
    config = replace(_FEW, filter_scale=0.65)
    backbone = SpineNetBackbone(config, config.layers, OPTIONS)
    assert backbone.node_0.channels == 4 * 41
    node = backbone.node_2
    assert node.resample_0.squeeze.kernel.shape == (1, 1, 164, 20)
    assert node.resample_0.expand.kernel.shape == (1, 1, 20, 166)
    # Never to none at all.
    config = replace(_FEW, filter_scale=1e-3)
    assert SpineNetBackbone(config, config.layers, OPTIONS).node_1.channels == 4


@pytest.mark.parametrize(
    ("level", "pool"), [(2, None), (3, None), (4, (3, 2)), (5, (5, 4)), (6, (5, 8))]
)
def test_the_way_down_is_one_strided_convolution_and_one_pooling(level, pool, monkeypatch):
    pools = []

    def spy(x, size, stride):
        pools.append((size, stride))
        return x[:, ::stride, ::stride]

    monkeypatch.setattr(spinenet, "max_pool", spy)
    places = NodeSpec(2, "residual", 6), NodeSpec(level, "residual", 4)
    way = Resample(*places, replace(_FEW, resample_alpha=1.0), OPTIONS)
    assert hasattr(way, "halve") == (level > 2)
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
    backbone = SpineNetBackbone(_FEW, _FEW.layers, OPTIONS)
    # Node 5 is read by nothing but the output of its kind and level, which is node 6.
    assert _FEW.joined() == ((), (), (), (), (5,))
    node = backbone.node_6
    shapes = [(2, 32), (2, 32), (4, 32), (3, 64), (4, 32), (3, 16)]
    maps = [jnp.full((1, 128 >> level, 128 >> level, c), 0.5) for level, c in shapes]
    total = node.resample_0(maps[3], train=False) + node.resample_1(maps[4], train=False) + maps[5]
    np.testing.assert_allclose(
        node(maps, train=False, dropout_key=None),
        node.group(jax.nn.swish(total), train=False),
        rtol=1e-6,
    )


def test_later_blocks_are_left_out_more_often():
    config = replace(_FEW, drop_connect_rate=0.5, repeats=2)
    backbone = SpineNetBackbone(config, config.layers, OPTIONS)
    assert backbone.node_0.block_1.drop_connect_rate == 0
    groups = [getattr(backbone, f"node_{number}").group for number in range(2, 7)]
    rates = [(g.block_1.drop_connect_rate, g.block_2.drop_connect_rate) for g in groups]
    # init * (i + 1) / 5 for the blocks 0 to 4.
    np.testing.assert_allclose(rates, [(rate, rate) for rate in (0.1, 0.2, 0.3, 0.4, 0.5)])


@pytest.mark.slow
def test_training_in_float32_moves_every_array():
    train_once(SpineNetBackbone, _FEW, jnp.float32)


def test_maps_have_the_type_of_the_products():
    for dtype in (jnp.float32, jnp.bfloat16):
        backbone = SpineNetBackbone(_FEW, _FEW.layers, replace(OPTIONS, dtype=dtype))
        image = jax.ShapeDtypeStruct((1, 32, 32, 3), dtype)
        maps = jax.eval_shape(lambda x, part=backbone: part(x, train=False), image)
        assert [m.dtype for m in maps] == [dtype, dtype]
