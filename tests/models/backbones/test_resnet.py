"""ResNet with the stride inside its blocks .

ResNet v1: depths, taps before the stride, activations.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.backbones.resnet import ResNetBackbone
from stillbox.models.backbones.resnet_v1 import BottleneckUnit, ResNetBlock, ResNetV1Backbone
from stillbox.models.layers import Conv2d
from stillbox.models.layers.conv import SpaceToDepthConv2d, space_to_depth
from stillbox.models.variables import bind_detector, split_detector
from tests.helpers import build_options, parts_of
from tests.small import needs_shared
from tests.tpu_detection import golden, pixels, retinanet, weighted

_NORM = schema.BatchNorm(scale=True)
_CONFIG = schema.ResNet(conv=schema.ConvHyperparams(activation="relu", batch_norm=_NORM))
# Without statistics of the batch images do not depend on each other, and nothing is remembered.
_STILL = schema.ConvHyperparams(activation="relu", batch_norm=replace(_NORM, train=False))
_OPTIONS = build_options()


def _build(taps, **fields):
    return ResNetBackbone(replace(_CONFIG, **fields), taps, _OPTIONS)


@pytest.mark.parametrize(
    ("depth", "parameters"),
    # torchvision's 11,689,512, 21,797,672, 25,557,032, 44,549,160 and 60,192,808 less a classifier
    # of C * 1000 + 1000, C 512 up to 34 layers and 2048 above.
    [
        (18, 11_176_512),
        (34, 21_284_672),
        (50, 23_508_032),
        (101, 42_500_160),
        (152, 58_143_808),
    ],
)
def test_the_whole_network_has_the_published_number_of_parameters(depth, parameters):
    state = nnx.eval_shape(lambda: nnx.state(_build(("group_4",), depth=depth), nnx.Param))
    assert sum(p.size for p in jax.tree.leaves(state)) == parameters


@needs_shared
def test_its_maps_equal_those_of_the_graph_of_retinanet():
    backbone = weighted(retinanet()).backbone
    # The pyramid does not read group 1.
    backbone.taps = ("group_1", "group_2", "group_3", "group_4")
    graph, params, stats = split_detector(backbone)
    run = jax.jit(lambda *arrays: bind_detector(graph, *arrays)(pixels(), train=False))
    for level, ours in zip(range(2, 6), map(np.asarray, run(params, stats)), strict=True):
        theirs = golden("forward")["r50fpn_128"]["b"][str(level)]
        assert list(ours.shape) == theirs["shape"]
        moments = [ours.mean(dtype=np.float64), ours.std(dtype=np.float64), *ours.ravel()[:4]]
        expected = [theirs["mean"], theirs["std"], *theirs["first4"]]
        # Values of up to 2, sums in another order.
        np.testing.assert_allclose(moments, expected, rtol=0, atol=5e-7)


def test_strides_give_the_sizes_of_ssd_and_of_a_pyramid():
    taps = ("stem", "group_1", "group_2", "group_3")
    images = jax.ShapeDtypeStruct((2, 300, 300, 3), jnp.float32)

    def sides(**fields):
        backbone = _build(taps, depth=18, **fields)
        outputs = jax.eval_shape(lambda x: backbone(x, train=False), images)
        assert tuple(output.shape[3] for output in outputs) == backbone.channels
        return [output.shape[1] for output in outputs]

    assert sides(group_strides=(1, 2, 1, 2)) == [150, 75, 38, 38]
    assert sides() == [150, 75, 38, 19]


def test_levels_follow_from_the_strides():
    assert _CONFIG.levels == {2: "group_1", 3: "group_2", 4: "group_3", 5: "group_4"}
    ssd = replace(_CONFIG, group_strides=(1, 2, 1, 2))
    assert ssd.levels == {2: "group_1", 3: "group_3", 4: "group_4"}


def test_blocks_start_as_identities_only_with_zero_last_scale():
    for zero in (True, False):
        backbone = _build(("group_1",), depth=18, zero_last_scale=zero)
        block = parts_of(backbone)["group_1.block_1"]
        # Stride and channels stay: no projection.
        assert block.shortcut is None
        x = jnp.abs(jnp.asarray(np.random.default_rng(1).normal(size=(1, 8, 8, 64)), jnp.float32))
        assert np.allclose(block(x, train=True), x) == zero


def test_the_first_block_of_every_group_projects_if_configured():
    # A 1x1 of 64 channels and its batch norm more than torchvision's 11,176,512 (above).
    state = nnx.eval_shape(
        lambda: nnx.state(_build(("group_4",), depth=18, project_first_block=True), nnx.Param)
    )
    assert sum(p.size for p in jax.tree.leaves(state)) == 11_176_512 + 64 * 64 + 2 * 64
    backbone = _build(("group_1",), depth=18, project_first_block=True)
    assert "group_1.block_1.shortcut" in parts_of(backbone)
    assert "group_1.block_2.shortcut" not in parts_of(backbone)


def test_blocks_are_left_out_more_often_the_deeper_they_are():
    backbone = _build(("group_4",), depth=10, drop_connect_rate=0.5)
    # The rate of group i is init * i / 5 for i = 2 to 5.
    rates = [
        parts_of(backbone)[f"group_{group}.block_1"].drop_connect_rate for group in range(1, 5)
    ]
    np.testing.assert_allclose(rates, [0.2, 0.3, 0.4, 0.5])


def test_a_block_that_is_left_out_is_its_shortcut():
    x = jnp.abs(jnp.asarray(np.random.default_rng(6).normal(size=(16, 4, 4, 64)), jnp.float32))
    fields = {"conv": _STILL, "zero_last_scale": False, "depth": 18}
    block = _build(("group_1",), drop_connect_rate=0.75, **fields).groups["group_1"].blocks[1]
    first, second = block.convolutions.values()
    branch = second(first(x, train=False), train=False)
    y = block(x, train=True, dropout_key=jax.random.key(1))
    # Group 1 has 2/5 of .75; the others are divided by .7.
    left_out = np.array([np.array_equal(after, before) for after, before in zip(y, x, strict=True)])
    assert 0 < left_out.sum() < 16
    expected = jnp.where(left_out[:, None, None, None], x, jax.nn.relu(x + branch / 0.7))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(block(x, train=False), jax.nn.relu(x + branch))


def test_drop_block_follows_every_convolution_and_the_shortcut(monkeypatch):
    drawn = []

    def spy(x, config, key):
        drawn.append((x.shape[1:], key))
        return x

    # A key that tells how it was derived.
    fold = "stillbox.models.backbones.resnet.fold_key"
    monkeypatch.setattr(fold, lambda key, number: (*key, number))
    monkeypatch.setattr("stillbox.models.backbones.resnet.drop_block", spy)
    backbone = _build(("group_2",), depth=10, drop_block=schema.DropBlock(), conv=_STILL)
    x = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    jax.eval_shape(lambda x: backbone(x, train=False, dropout_key=()), x)
    assert drawn == []
    jax.eval_shape(lambda x: backbone(x, train=True, dropout_key=()), x)
    # Shortcut and two convolutions of one block of each group, none behind the stem.
    assert [shape for shape, _ in drawn] == [(8, 8, 64)] * 3 + [(4, 4, 128)] * 3
    assert len({key for _, key in drawn}) == 6


@pytest.mark.parametrize("fields", [{"drop_connect_rate": 0.2}, {"drop_block": schema.DropBlock()}])
def test_parts_with_dropout_need_a_key_in_training_only(fields):
    backbone = _build(("group_1",), depth=10, conv=_STILL, **fields)
    x = jax.ShapeDtypeStruct((1, 16, 16, 3), jnp.float32)
    jax.eval_shape(lambda x: backbone(x, train=False), x)
    with pytest.raises(ValueError, match="dropout_key"):
        jax.eval_shape(lambda x: backbone(x, train=True), x)


@pytest.mark.parametrize("padding", ["same", "symmetric"])
def test_the_pooling_is_padded_as_its_framework_does(padding):
    backbone = _build(("group_1",), depth=18, pool_padding=padding)
    x = jnp.asarray(np.random.default_rng(2).normal(size=(1, 12, 12, 3)), jnp.float32)
    # Six rows of the stem: TensorFlow pads one at the end, PyTorch one at either end.
    pads = (0, 1) if padding == "same" else (1, 1)
    stem = backbone.stem(x, train=False)
    pooled = jax.lax.reduce_window(
        stem, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), pads, pads, (0, 0))
    )
    expected = backbone.groups["group_1"](pooled, train=False)
    np.testing.assert_allclose(backbone(x, train=False)[0], expected, atol=1e-6)


def test_blocks_of_pixels_are_ordered_row_column_channel():
    # Pixels 0 1 / 2 3 of two channels, the second ten times the first.
    x = jnp.asarray([[[[0, 0], [1, 10]], [[2, 20], [3, 30]]]])
    assert space_to_depth(x).ravel().tolist() == [0, 0, 1, 10, 2, 20, 3, 30]


@pytest.mark.parametrize("size", [3, 5, 7])
def test_a_folded_convolution_equals_the_plain_one(size):
    hyperparams = schema.ConvHyperparams(activation="none")
    options = _OPTIONS.layer_arguments() | {"padding": "symmetric"}
    plain = Conv2d(3, 16, size, 2, hyperparams, **options)
    folded = SpaceToDepthConv2d(3, 16, size, 2, hyperparams, **options)
    folded.kernel[...] = plain.kernel[...]
    x = jnp.asarray(np.random.default_rng(3).normal(size=(2, 20, 30, 3)), jnp.float32)
    np.testing.assert_allclose(folded(x, train=False), plain(x, train=False), rtol=1e-5, atol=1e-5)


def test_gradients_of_the_folded_stem_equal_the_plain_ones():
    def loss(kernel, space_to_depth_stem, x):
        stem = _build(("stem",), depth=18, space_to_depth_stem=space_to_depth_stem).stem
        stem.kernel[...] = kernel
        return jnp.sum(jnp.sin(stem(x, train=True)))

    kernel = jnp.asarray(np.random.default_rng(4).normal(size=(7, 7, 3, 64)) / 12, jnp.float32)
    x = jnp.asarray(np.random.default_rng(5).normal(size=(2, 32, 32, 3)), jnp.float32)
    plain, folded = (jax.grad(loss)(kernel, folded, x) for folded in (False, True))
    np.testing.assert_allclose(folded, plain, rtol=1e-4, atol=1e-4 * float(jnp.abs(plain).max()))


_V1_CONFIG = schema.ResNetV1(conv=schema.ConvHyperparams(activation="relu6", batch_norm=_NORM))


def _build_v1(taps, **fields):
    return ResNetV1Backbone(replace(_V1_CONFIG, **fields), taps, _OPTIONS)


@pytest.mark.parametrize(
    ("depth", "parameters"),
    # The well-known 25,557,032, 44,549,160 and 60,192,808 less a classifier of 2048 * 1000 + 1000.
    [(50, 23_508_032), (101, 42_500_160), (152, 58_143_808)],
)
def test_resnet_v1_the_whole_network_has_the_published_number_of_parameters(depth, parameters):
    state = nnx.eval_shape(lambda: nnx.state(_build_v1(("block_4",), depth=depth), nnx.Param))
    assert sum(p.size for p in jax.tree.leaves(state)) == parameters


def test_taps_are_taken_before_their_block_is_strided():
    backbone = _build_v1(("root", "block_1", "block_2", "block_3"))
    images = jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)
    taps = jax.eval_shape(lambda x: backbone(x, train=False), images)
    assert [t.shape[1:3] for t in taps] == [(32, 48), (16, 24), (8, 12), (4, 6)]
    assert tuple(t.shape[3] for t in taps) == backbone.channels == (64, 256, 512, 1024)


def test_layers_are_clipped_at_six_but_the_sum_of_a_unit_is_not():
    unit = BottleneckUnit(_V1_CONFIG, 8, 2, _OPTIONS)
    assert unit.shortcut is None
    parts_of(unit)["conv_3"].kernel[...] = jnp.zeros_like(parts_of(unit)["conv_3"].kernel[...])
    x = jnp.array([-1.0, 7.0] * 4).reshape(1, 1, 1, 8)
    np.testing.assert_array_equal(unit(x, train=False).ravel(), [0, 7] * 4)
    assert parts_of(unit)["conv_2"].activation == "relu6"


def test_a_unit_that_changes_the_width_projects_its_shortcut():
    unit = BottleneckUnit(_V1_CONFIG, 4, 2, _OPTIONS)
    assert unit.shortcut.kernel.shape == (1, 1, 4, 8)
    assert unit.shortcut.activation == "none"


def test_unread_blocks_exist_on_demand():
    assert "block_2" not in parts_of(_build_v1(("block_1",)))
    assert "block_2" in parts_of(_build_v1(("block_1",), last_layer="block_2"))


@pytest.mark.parametrize(
    ("output_stride", "sides"), [(32, (16, 8, 4, 2)), (16, (16, 8, 4, 4)), (8, (16, 8, 8, 8))]
)
def test_the_output_stride_is_that_of_the_last_blocks(output_stride, sides):
    names = ("block_1", "block_2", "block_3", "block_4")
    backbone = nnx.eval_shape(lambda: _build_v1(names, output_stride=output_stride))
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    taps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    assert tuple(tap.shape[1] for tap in taps) == sides
    # slim multiplies the distance of taps by each stride that it leaves out.
    dilations = [parts_of(backbone)[f"{name}.unit_3.conv_2"].dilation for name in names]
    assert dilations == [max(1, 2**block * 4 // output_stride) for block in range(4)]
    levels = replace(_V1_CONFIG, output_stride=output_stride).levels
    assert {level: 64 >> level for level in levels} == {
        level: sides[names.index(name)] for level, name in levels.items()
    }


def test_a_dilated_block_computes_the_strided_one_at_every_place():
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 7, 6, 8)), jnp.float32)
    # The same weights: `rng` starts anew.
    dilated, plain = (
        ResNetBlock(
            _V1_CONFIG,
            8,
            4,
            2,
            replace(_OPTIONS, rng=np.random.default_rng(2)),
            dilation=dilation,
        )
        for dilation in (2, 1)
    )
    every, some = dilated(x, train=False), plain(x[:, ::2, 1::2], train=False)
    np.testing.assert_allclose(every[:, ::2, 1::2], some, atol=1e-5)


def test_a_stride_inside_the_last_unit_subsamples_the_block():
    names = ("block_1", "block_2", "block_3")
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 7, 10, 8)), jnp.float32)
    strided, plain = (
        ResNetBlock(_V1_CONFIG, 8, 4, 2, replace(_OPTIONS, rng=np.random.default_rng(2)), stride=s)
        for s in (2, 1)
    )
    np.testing.assert_allclose(
        strided(x, train=False), plain(x, train=False)[:, ::2, ::2], atol=1e-5
    )
    config = replace(_V1_CONFIG, output_stride=16, stride_in_unit=True)
    backbone = nnx.eval_shape(lambda: ResNetV1Backbone(config, names, _OPTIONS))
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    taps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    assert [tap.shape[1] for tap in taps] == [8, 4, 4]
    assert config.levels == {3: "block_1", 4: "block_3"}


@pytest.mark.parametrize("output_stride", [8, 16, 32])
def test_strided_units_have_levels_of_the_stride_behind_them(output_stride):
    names = ("block_1", "block_2", "block_3", "block_4")
    config = replace(_V1_CONFIG, output_stride=output_stride, stride_in_unit=True)
    backbone = nnx.eval_shape(lambda: ResNetV1Backbone(config, names, _OPTIONS))
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    taps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    sides = dict(zip(names, (tap.shape[1] for tap in taps), strict=True))
    assert all(sides[name] == 64 >> level for level, name in config.levels.items())
    assert min(config.levels) == 3
    assert min(sides.values()) == 64 // output_stride
