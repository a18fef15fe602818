"""EfficientNet-Lite: published sizes, unscaled ends, taps.

Its numbers are compared with the published networks in tests/proofs/test_efficientnet_lite.py.
"""

from math import prod

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models.layers.hyperparams import ShapesOnly
from stillbox.models.parts import BuildOptions

SIZES = schema.EFFICIENTNET_LITE_SIZES
_SHAPES = BuildOptions(dtype=jnp.float32, freeze_norm=True, rng=ShapesOnly())


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
    block = build("lite0", "stack_1_block_0").stack_1_block_0
    assert not hasattr(block, "squeeze")
    assert SIZES["lite0"].conv.activation == "relu6"
