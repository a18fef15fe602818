"""Inception ResNet v2: sizes and channels of its layers, its residual blocks, its box head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.backbones.inception_resnet import InceptionResNetV2Backbone, ResidualBlock
from stillbox.models.box_heads import InceptionResNetV2BlockBoxHead
from stillbox.models.layers.hyperparams import ShapesOnly
from stillbox.models.parts import BuildOptions

_SHAPES = BuildOptions(dtype=jnp.float32, freeze_norm=True, rng=ShapesOnly())
_THIN = {"depth_multiplier": 0.05, "min_depth": 4}


@pytest.mark.parametrize("stride", [16, 8])
def test_layers_have_the_strides_and_channels_of_the_original(stride):
    config = schema.InceptionResNetV2(output_stride=stride)
    wanted = ("conv_1a", "conv_2b", "pool_3a", "conv_4a", "mixed_5b", "block35_10", "block17_20")
    backbone = nnx.eval_shape(lambda: InceptionResNetV2Backbone(config, wanted, _SHAPES))
    images = jax.ShapeDtypeStruct((1, 299, 224, 3), jnp.float32)
    taps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    # Every layer is padded: 299 is 150, 75, 38, 19.
    last = (19, 14) if stride == 16 else (38, 28)
    assert [tap.shape[1:3] for tap in taps] == [
        *[(150, 112)] * 2,
        *[(75, 56)] * 2,
        *[(38, 28)] * 2,
        last,
    ]
    # Of slim's comments.
    assert backbone.channels == (32, 64, 64, 192, 320, 320, 1088)
    assert tuple(tap.shape[3] for tap in taps) == backbone.channels


@pytest.mark.parametrize(("padding", "side"), [("valid", 8), ("same", 9)])
def test_crops_become_vectors_of_the_last_convolution(padding, side):
    config = schema.InceptionResNetV2BlockHead(padding=padding)
    head = nnx.eval_shape(lambda: InceptionResNetV2BlockBoxHead(config, 1088, 17, _SHAPES))
    crops = jax.ShapeDtypeStruct((6, 17, 17, 1088), jnp.float32)
    maps = nnx.eval_shape(lambda head, x: head.features(x, train=False), head, crops)
    assert maps.shape == (6, side, side, 1536)
    assert head.block8_1.up.kernel.shape == (1, 1, 192 + 256, 2080)


def _block(name, **arguments):
    rng = np.random.default_rng(0)
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=rng)
    return ResidualBlock(name, schema.InceptionResNetV2(**_THIN), 6, options, **arguments)


@pytest.mark.parametrize(("name", "scale"), [("block35_3", 0.17), ("block17_1", 0.1)])
def test_a_block_adds_a_share_of_its_branches(name, scale):
    block = _block(name)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 9, 9, 6)), jnp.float32)
    block.up.kernel[...] = jnp.zeros_like(block.up.kernel[...])
    block.up.bias[...] = jnp.arange(6.0)
    expected = np.maximum(np.asarray(x) + scale * np.arange(6.0), 0)
    np.testing.assert_allclose(block(x, train=False), expected, atol=1e-6)


def test_the_last_block_is_neither_scaled_nor_activated():
    block = _block("block8_10", last=True)
    block.up.kernel[...] = jnp.zeros_like(block.up.kernel[...])
    block.up.bias[...] = jnp.full(6, -2.0)
    x = jnp.ones((1, 3, 3, 6))
    np.testing.assert_allclose(block(x, train=False), jnp.full_like(x, -1.0))


def test_dilated_kernels_reach_twice_as_far():
    for dilation, reach in ((1, 3), (2, 6)):
        block = _block("block17_1", dilation=dilation)
        x = jnp.zeros((1, 17, 17, 6))
        changed = block(x.at[0, 8, 8].set(1.0), train=False) != block(x, train=False)
        rows = np.flatnonzero(np.asarray(changed).any(axis=(0, 2, 3)))
        assert rows.min() >= 8 - reach and rows.max() <= 8 + reach
        assert rows.max() > 8 + reach - dilation
