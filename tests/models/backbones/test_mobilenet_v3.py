"""MobileNet v3: published sizes, gates, activations, taps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models.backbones.mobile_blocks import Block, Gate, MobileBlock, hard_sigmoid
from stillbox.models.layers.initializers import ShapesOnly
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
