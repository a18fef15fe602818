"""The feature pyramid, with kernels that can be followed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.layers import SeparableConv2d
from stillbox.models.necks.fpn import FpnNeck, upsample_to
from stillbox.models.parts import BuildOptions

_CONV = schema.ConvHyperparams(activation="none", batch_norm=None)


def _build(inputs, conv=_CONV, **fields):
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    return FpnNeck(schema.Fpn(conv=conv, depth=1, min_depth=1, **fields), inputs, options)


def _simple(**fields):
    """Projections that pass on, smoothing that doubles, a coarse layer that takes every second."""
    neck = _build((1, 1, 1), min_level=3, max_level=6, **fields)
    for number in (1, 2, 3):
        getattr(neck, f"projection_{number}").kernel[...] = jnp.ones((1, 1, 1, 1))
    middle = jnp.zeros((3, 3, 1, 1)).at[1, 1].set(1.0)
    for number in (1, 2):
        getattr(neck, f"smoothing_{number}").kernel[...] = 2 * middle
    neck.coarse_1.kernel[...] = middle
    return neck


# Stride 8, 16 and 32 of an image of 32 pixels: constant maps of 1, 10 and 100.
_TAPS = tuple(
    jnp.full((1, side, side, 1), value) for side, value in ((4, 1.0), (2, 10.0), (1, 100.0))
)


@pytest.mark.parametrize(
    ("top_down", "values"),
    [
        # Sums 100, 110, 111; all but the top are doubled; the coarse map takes the top's pixel.
        ("sum", (222, 220, 100, 100)),
        # The doubled 220 goes down: 220 + 1, doubled.
        ("smoothed", (442, 220, 100, 100)),
    ],
)
def test_levels_add_up_from_the_top(top_down, values):
    maps = _simple(top_down=top_down)(_TAPS, train=True)
    assert [m.shape[1:3] for m in maps] == [(4, 4), (2, 2), (1, 1), (1, 1)]
    for feature_map, value in zip(maps, values, strict=True):
        np.testing.assert_array_equal(feature_map, np.full(feature_map.shape, value, np.float32))


def test_upsampling_repeats_and_crops():
    x = jnp.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 2, 2, 1)
    doubled = upsample_to(x, jnp.zeros((1, 3, 4, 1))).reshape(3, 4)
    np.testing.assert_array_equal(doubled, [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4]])


def test_with_explicit_padding_odd_maps_fit():
    neck = _build((1, 1), min_level=4, max_level=5, explicit_padding=True)
    taps = (jnp.zeros((1, 5, 5, 1)), jnp.zeros((1, 3, 3, 1)))
    maps = jax.eval_shape(lambda *taps: neck(taps, train=True), *taps)
    assert [m.shape[1:3] for m in maps] == [(5, 5), (3, 3)]


def test_projections_have_a_bias_and_smoothing_has_the_norm():
    conv = schema.ConvHyperparams(activation="relu6", batch_norm=schema.BatchNorm())
    neck = _build((3, 4), conv, min_level=4, max_level=7)
    assert hasattr(neck.projection_1, "bias")
    assert not hasattr(neck.projection_1, "norm")
    assert neck.projection_2.activation == "none"
    assert neck.coarse == (1, 2)
    assert all(hasattr(layer, "norm") for layer in (neck.smoothing_1, neck.coarse_2))
    assert not hasattr(neck, "smoothing_2")


def test_a_depthwise_pyramid_is_separable():
    neck = _build((3, 4), min_level=4, max_level=6, depthwise=True)
    assert isinstance(neck.smoothing_1, SeparableConv2d)
    assert isinstance(neck.coarse_1, SeparableConv2d)
    assert not isinstance(neck.projection_1, SeparableConv2d)
