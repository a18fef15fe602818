"""ResNet v1: depths, taps before the stride, activations."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.backbones.resnet_v1 import BottleneckUnit, ResNetBlock, ResNetV1Backbone
from stillbox.models.parts import BuildOptions

_NORM = schema.BatchNorm(scale=True)
_CONFIG = schema.ResNetV1(conv=schema.ConvHyperparams(activation="relu6", batch_norm=_NORM))
_OPTIONS = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))


def _build(taps, **fields):
    return ResNetV1Backbone(replace(_CONFIG, **fields), taps, _OPTIONS)


@pytest.mark.parametrize(
    ("depth", "parameters"),
    # The well-known 25,557,032, 44,549,160 and 60,192,808 less a classifier of 2048 * 1000 + 1000.
    [(50, 23_508_032), (101, 42_500_160), (152, 58_143_808)],
)
def test_the_whole_network_has_the_published_number_of_parameters(depth, parameters):
    state = nnx.eval_shape(lambda: nnx.state(_build(("block_4",), depth=depth), nnx.Param))
    assert sum(p.size for p in jax.tree.leaves(state)) == parameters


def test_taps_are_taken_before_their_block_is_strided():
    backbone = _build(("root", "block_1", "block_2", "block_3"))
    images = jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)
    taps = jax.eval_shape(lambda x: backbone(x, train=False), images)
    assert [t.shape[1:3] for t in taps] == [(32, 48), (16, 24), (8, 12), (4, 6)]
    assert tuple(t.shape[3] for t in taps) == backbone.channels == (64, 256, 512, 1024)


def test_layers_are_clipped_at_six_but_the_sum_of_a_unit_is_not():
    unit = BottleneckUnit(_CONFIG, 8, 2, _OPTIONS)
    assert not hasattr(unit, "shortcut")
    unit.conv_3.kernel[...] = jnp.zeros_like(unit.conv_3.kernel[...])
    x = jnp.array([-1.0, 7.0] * 4).reshape(1, 1, 1, 8)
    np.testing.assert_array_equal(unit(x, train=False).ravel(), [0, 7] * 4)
    assert unit.conv_2.activation == "relu6"


def test_a_unit_that_changes_the_width_projects_its_shortcut():
    unit = BottleneckUnit(_CONFIG, 4, 2, _OPTIONS)
    assert unit.shortcut.kernel.shape == (1, 1, 4, 8)
    assert unit.shortcut.activation == "none"


def test_unread_blocks_exist_on_demand():
    assert not hasattr(_build(("block_1",)), "block_2")
    assert hasattr(_build(("block_1",), last_layer="block_2"), "block_2")


@pytest.mark.parametrize(
    ("output_stride", "sides"), [(32, (16, 8, 4, 2)), (16, (16, 8, 4, 4)), (8, (16, 8, 8, 8))]
)
def test_the_output_stride_is_that_of_the_last_blocks(output_stride, sides):
    names = ("block_1", "block_2", "block_3", "block_4")
    backbone = nnx.eval_shape(lambda: _build(names, output_stride=output_stride))
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    taps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    assert tuple(tap.shape[1] for tap in taps) == sides
    # slim multiplies the distance of taps by each stride that it leaves out.
    dilations = [getattr(backbone, name).unit_3.conv_2.dilation for name in names]
    assert dilations == [max(1, 2**block * 4 // output_stride) for block in range(4)]
    levels = replace(_CONFIG, output_stride=output_stride).levels
    assert {level: 64 >> level for level in levels} == {
        level: sides[names.index(name)] for level, name in levels.items()
    }


def test_a_dilated_block_computes_the_strided_one_at_every_place():
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 7, 6, 8)), jnp.float32)
    # The same weights: `rng` starts anew.
    dilated, plain = (
        ResNetBlock(
            _CONFIG, 8, 4, 2, replace(_OPTIONS, rng=np.random.default_rng(2)), dilation=dilation
        )
        for dilation in (2, 1)
    )
    every, some = dilated(x, train=False), plain(x[:, ::2, 1::2], train=False)
    np.testing.assert_allclose(every[:, ::2, 1::2], some, atol=1e-5)


def test_a_stride_inside_the_last_unit_subsamples_the_block():
    names = ("block_1", "block_2", "block_3")
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 7, 10, 8)), jnp.float32)
    strided, plain = (
        ResNetBlock(_CONFIG, 8, 4, 2, replace(_OPTIONS, rng=np.random.default_rng(2)), stride=s)
        for s in (2, 1)
    )
    np.testing.assert_allclose(
        strided(x, train=False), plain(x, train=False)[:, ::2, ::2], atol=1e-5
    )
    config = replace(_CONFIG, output_stride=16, stride_in_unit=True)
    backbone = nnx.eval_shape(lambda: ResNetV1Backbone(config, names, _OPTIONS))
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    taps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    assert [tap.shape[1] for tap in taps] == [8, 4, 4]
    assert config.levels == {3: "block_1", 4: "block_3"}


@pytest.mark.parametrize("output_stride", [8, 16, 32])
def test_strided_units_have_levels_of_the_stride_behind_them(output_stride):
    names = ("block_1", "block_2", "block_3", "block_4")
    config = replace(_CONFIG, output_stride=output_stride, stride_in_unit=True)
    backbone = nnx.eval_shape(lambda: ResNetV1Backbone(config, names, _OPTIONS))
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    taps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    sides = dict(zip(names, (tap.shape[1] for tap in taps), strict=True))
    assert all(sides[name] == 64 >> level for level, name in config.levels.items())
    assert min(config.levels) == 3
    assert min(sides.values()) == 64 // output_stride
