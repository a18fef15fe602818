"""The cross stage partial network: what a block hands on."""

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.experiment import schema
from stillbox.models.backbones.csp import CspBackbone
from tests.helpers import build_options, parts_of

_CONV = schema.ConvHyperparams(activation="leaky_relu", batch_norm=None)


def _build(taps, **fields):
    return CspBackbone(schema.Csp(width=4, conv=_CONV, **fields), taps, build_options())


def test_maps_halve_and_channels_double():
    taps = ("stem", "block_1", "block_2", "block_3", "block_4")
    backbone = _build(taps)
    shapes = jax.eval_shape(lambda x: backbone(x, train=False), jnp.zeros((1, 64, 96, 3)))
    assert [shape.shape[1:] for shape in shapes] == [
        (32, 48, 4), (16, 24, 8), (8, 12, 16), (4, 6, 32), (2, 3, 64)
    ]  # fmt: skip
    assert backbone.channels == (4, 8, 16, 32, 64)
    parts = parts_of(backbone)
    assert "block_2.pair_2" in parts
    assert "block_2.pair_3" not in parts


def test_a_block_hands_on_its_first_convolution_behind_what_it_makes_of_it():
    backbone = _build(("block_1",), pairs=(1, 1, 1, 1))
    block = parts_of(backbone)["block_1"]
    for path, layer in parts_of(block).items():
        # Each convolution adds up its channels at the same place, and has a bias.
        if path.rpartition(".")[2] in ("enter", "narrow", "refine", "merge"):
            size = layer.kernel.shape
            layer.kernel[...] = jnp.zeros(size).at[1, 1].set(1.0)
            layer.bias[...] = jnp.full(size[-1], -1.0)
    (channels,) = np.asarray(block(jnp.ones((1, 1, 1, 4)), train=False))[0, 0]
    # enter 4 - 1 = 3; narrow 12 - 1 = 11; refine 22 - 1 = 21; merge 2 x 21 + 2 x 11 - 1 = 63.
    np.testing.assert_array_equal(channels, [63] * 4 + [3] * 4)


def test_negative_numbers_keep_a_tenth():
    backbone = _build(("stem",))
    backbone.stem.kernel[...] = jnp.zeros((3, 3, 3, 4))
    backbone.stem.bias[...] = jnp.array([-20.0, -1.0, 0.0, 3.0])
    (stem,) = backbone(jnp.zeros((1, 2, 2, 3)), train=False)
    np.testing.assert_allclose(stem[0, 0, 0], [-2, -0.1, 0, 3], rtol=1e-6)
