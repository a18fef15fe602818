"""SSD's extra layers: widths, names, halved maps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.necks.ssd_layers import SsdLayersNeck
from stillbox.models.parts import BuildOptions

_CONV = schema.ConvHyperparams(batch_norm=schema.BatchNorm())


def _build(inputs, **fields):
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    return SsdLayersNeck(schema.SsdLayers(conv=_CONV, **fields), inputs, options)


@pytest.mark.parametrize(
    ("multiplier", "channels", "squeezed"),
    [
        (1.0, (512, 256, 256, 128), (256, 128, 128, 64)),
        (0.75, (384, 192, 192, 96), (192, 96, 96, 48)),
        (0.1, (51, 25, 25, 16), (25, 16, 16, 16)),  # 25.6 -> 25, 12.8 -> floor 16
    ],
)
def test_widths_follow_multiplier_and_floor(multiplier, channels, squeezed):
    neck = _build((7, 9), depth_multiplier=multiplier)
    assert neck.channels == (7, 9, *channels)
    kernels = [getattr(neck, f"extra_{k}_1x1").kernel.shape for k in range(2, 6)]
    previous = (9, *channels[:3])
    assert kernels == [(1, 1, i, o) for i, o in zip(previous, squeezed, strict=True)]


def test_each_extra_map_halves_the_one_before_rounding_up():
    neck = _build((4, 8), extra_depths=(16, 16, 16))
    taps = tuple(jax.ShapeDtypeStruct((2, *s), jnp.float32) for s in ((19, 10, 4), (10, 5, 8)))
    maps = jax.eval_shape(lambda *taps: neck(taps, train=False), *taps)
    sides = [m.shape[1:3] for m in maps]
    assert sides == [(19, 10), (10, 5), (5, 3), (3, 2), (2, 1)]


@pytest.mark.parametrize("depthwise", [False, True])
def test_kernels_have_the_given_sizes(depthwise):
    neck = _build((4, 8), extra_depths=(16, 16), extra_kernel_sizes=(3, 2), depthwise=depthwise)
    name = "depthwise" if depthwise else "3x3"
    sizes = [getattr(neck, f"extra_{k}_{name}").kernel.shape[:2] for k in (2, 3)]
    assert sizes == [(3, 3), (2, 2)]
    taps = tuple(jax.ShapeDtypeStruct((2, *s), jnp.float32) for s in ((8, 8, 4), (4, 4, 8)))
    maps = jax.eval_shape(lambda *taps: neck(taps, train=False), *taps)
    assert [m.shape[1] for m in maps] == [8, 4, 2, 1]


def test_without_extra_depths_the_taps_are_the_maps():
    neck = _build((4, 8), extra_depths=())
    taps = (jnp.zeros((1, 2, 2, 4)), jnp.zeros((1, 1, 1, 8)))
    assert neck(taps, train=True) == taps
    assert neck.channels == (4, 8)


def test_depthwise_layers_halve_before_they_widen():
    neck = _build((4, 8), extra_depths=(16,), depthwise=True)
    assert neck.extra_2_depthwise.kernel.shape == (3, 3, 16, 1)
    assert neck.extra_2_3x3.kernel.shape == (1, 1, 16, 16)
    assert (neck.extra_2_depthwise.stride, neck.extra_2_3x3.stride) == (2, 1)
    taps = tuple(jax.ShapeDtypeStruct((2, *s), jnp.float32) for s in ((19, 10, 4), (10, 5, 8)))
    maps = jax.eval_shape(lambda *taps: neck(taps, train=False), *taps)
    assert maps[-1].shape == (2, 5, 3, 16)


def test_a_map_without_stride_loses_its_edges():
    """SSD300's coarsest maps: 10, 5, 3, 1 ."""
    neck = _build((4,), extra_depths=(16, 16, 16, 16), extra_strides=(2, 2, 1, 1))
    tap = jax.ShapeDtypeStruct((2, 19, 19, 4), jnp.float32)
    maps = jax.eval_shape(lambda tap: neck((tap,), train=False), tap)
    assert [m.shape[1] for m in maps] == [19, 10, 5, 3, 1]
