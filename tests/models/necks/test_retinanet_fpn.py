"""RetinaNet's pyramid, with kernels that can be followed by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.layers import SeparableConv2d
from stillbox.models.necks.retinanet_fpn import RetinaNetFpnNeck
from stillbox.models.parts import BuildOptions

_PLAIN = schema.ConvHyperparams(activation="relu", batch_norm=None)


def _build(inputs, conv=_PLAIN, dtype=jnp.float32, **fields):
    options = BuildOptions(dtype=dtype, freeze_norm=False, rng=np.random.default_rng(0))
    config = schema.RetinaNetFpn(**{"conv": conv, "depth": 1} | fields)
    return RetinaNetFpnNeck(config, inputs, options)


def _simple(**fields):
    """Laterals that pass on; outputs that double; coarse layers that change the sign."""
    neck = _build((1, 1, 1), **fields)
    middle = jnp.zeros((3, 3, 1, 1)).at[1, 1].set(1.0)
    for level in (3, 4, 5):
        getattr(neck, f"lateral_{level}").kernel[...] = jnp.ones((1, 1, 1, 1))
        getattr(neck, f"output_{level}").kernel[...] = 2 * middle
    # TensorFlow pads a side of 2 at its end alone: the first pixel stands under the first tap.
    neck.coarse_6.kernel[...] = -jnp.zeros((3, 3, 1, 1)).at[0, 0].set(1.0)
    neck.coarse_7.kernel[...] = -middle
    return neck


# Stride 8, 16 and 32 of an image of 64 pixels: constant maps of 1, 10 and 100.
_TAPS = tuple(
    jnp.full((1, side, side, 1), value) for side, value in ((8, 1.0), (4, 10.0), (2, 100.0))
)


def test_levels_add_up_from_the_top_and_coarse_ones_come_from_its_convolution():
    maps = _simple()(_TAPS, train=False)
    assert [m.shape[1:3] for m in maps] == [(8, 8), (4, 4), (2, 2), (1, 1), (1, 1)]
    # Sums 111, 110, 100, all doubled. Level 6 is minus level 5; ReLU leaves nothing for level 7.
    for feature_map, value in zip(maps, (222, 220, 200, -200, 0), strict=True):
        np.testing.assert_array_equal(feature_map, np.full(feature_map.shape, value, np.float32))


def test_the_activation_between_the_coarse_levels_is_the_configured_one():
    conv = schema.ConvHyperparams(activation="none", batch_norm=None)
    assert float(_simple(conv=conv)(_TAPS, train=False)[-1][0, 0, 0, 0]) == 200


def test_levels_are_normalised_after_others_were_made_from_them():
    norm = schema.BatchNorm(epsilon=1e-12, scale=True)
    conv = schema.ConvHyperparams(activation="relu", batch_norm=norm, force_bias=True)
    neck = _simple(conv=conv)
    for level in range(3, 8):
        getattr(neck, f"norm_{level}").mean[...] = jnp.full(1, 10.0 * level)
    values = [float(m[0, 0, 0, 0]) for m in neck(_TAPS, train=False)]
    # The numbers from above less 30, 40, ... 70.
    assert values == [222 - 30, 220 - 40, 200 - 50, -200 - 60, 0 - 70]


@pytest.mark.parametrize("force_bias", [True, False])
def test_convolutions_have_biases_unless_the_norm_makes_up_for_them(force_bias):
    conv = schema.ConvHyperparams(batch_norm=schema.BatchNorm(), force_bias=force_bias)
    neck = _build((3, 4), conv, min_level=4)
    layers = ("lateral_4", "lateral_5", "output_4", "output_5", "coarse_6", "coarse_7")
    assert [hasattr(getattr(neck, name), "bias") for name in layers] == [force_bias] * 6
    assert not hasattr(neck.coarse_6, "norm")
    assert hasattr(_build((3, 4), min_level=4).lateral_4, "bias")
    assert not hasattr(_build((3, 4), min_level=4), "norm_4")


def test_a_depthwise_pyramid_is_separable_all_through():
    neck = _build((3, 4), min_level=4, depth=8, depthwise=True)
    for name in ("lateral_4", "output_5", "coarse_7"):
        assert isinstance(getattr(neck, name), SeparableConv2d)
    assert neck.lateral_4.depthwise_kernel.shape == (1, 1, 3, 1)
    assert neck.channels == (8,) * 4


def test_a_backbone_with_all_levels_needs_no_extra_maps():
    neck = _build((1, 1, 1), min_level=5)
    assert not hasattr(neck, "coarse_6")
    taps = tuple(jnp.ones((1, side, side, 1)) for side in (4, 2, 1))
    assert len(neck(taps, train=False)) == 3


def test_maps_keep_the_type_of_the_activations():
    neck = _build((1, 1, 1), dtype=jnp.bfloat16)
    taps = tuple(tap.astype(jnp.bfloat16) for tap in _TAPS)
    assert {m.dtype for m in neck(taps, train=False)} == {jnp.dtype("bfloat16")}
