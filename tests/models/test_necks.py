"""The feature pyramid, with kernels that can be followed by hand.

RetinaNet's pyramid, with kernels that can be followed by hand.

The pooling pyramid: maxima of 2x2 windows.

The neck that does nothing.

SSD's extra layers: widths, names, halved maps.

The path aggregation network, with maps of one value.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.layers import SeparableConv2d
from stillbox.models.necks.fpn import BiFpnNeck, FpnNeck, RetinaNetFpnNeck, upsample_to
from stillbox.models.necks.nas_fpn import NasFpnNeck, Step, plan_cell
from stillbox.models.necks.pan import PanNeck
from stillbox.models.necks.ssd_layers import IdentityNeck, PpnNeck, SsdLayersNeck
from tests.helpers import build_options, parts_of

_CONV = schema.ConvHyperparams(activation="none", batch_norm=None)


def _build(inputs, conv=_CONV, **fields):
    return FpnNeck(schema.Fpn(conv=conv, depth=1, min_depth=1, **fields), inputs, build_options())


def _simple(**fields):
    """Projections that pass on, smoothing that doubles, a coarse layer that takes every second."""
    neck = _build((1, 1, 1), min_level=3, max_level=6, **fields)
    for number in (1, 2, 3):
        parts_of(neck)[f"projection_{number}"].kernel[...] = jnp.ones((1, 1, 1, 1))
    middle = jnp.zeros((3, 3, 1, 1)).at[1, 1].set(1.0)
    for number in (1, 2):
        parts_of(neck)[f"smoothing_{number}"].kernel[...] = 2 * middle
    parts_of(neck)["coarse_1"].kernel[...] = middle
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
    assert parts_of(neck)["projection_1"].bias is not None
    assert "projection_1.norm" not in parts_of(neck)
    assert parts_of(neck)["projection_2"].activation == "none"
    assert tuple(neck.coarse) == (1, 2)
    assert all(
        (layer.norm is not None)
        for layer in (parts_of(neck)["smoothing_1"], parts_of(neck)["coarse_2"])
    )
    assert "smoothing_2" not in parts_of(neck)


def test_a_depthwise_pyramid_is_separable():
    neck = _build((3, 4), min_level=4, max_level=6, depthwise=True)
    assert isinstance(parts_of(neck)["smoothing_1"], SeparableConv2d)
    assert isinstance(parts_of(neck)["coarse_1"], SeparableConv2d)
    assert not isinstance(parts_of(neck)["projection_1"], SeparableConv2d)


_PLAIN = schema.ConvHyperparams(activation="relu", batch_norm=None)


def _build_retinanet_fpn(inputs, conv=_PLAIN, dtype=jnp.float32, **fields):
    config = schema.RetinaNetFpn(**{"conv": conv, "depth": 1} | fields)
    return RetinaNetFpnNeck(config, inputs, build_options(dtype=dtype))


def _simple_retinanet_fpn(**fields):
    """Laterals that pass on; outputs that double; coarse layers that change the sign."""
    neck = _build_retinanet_fpn((1, 1, 1), **fields)
    middle = jnp.zeros((3, 3, 1, 1)).at[1, 1].set(1.0)
    for level in (3, 4, 5):
        parts_of(neck)[f"lateral_{level}"].kernel[...] = jnp.ones((1, 1, 1, 1))
        parts_of(neck)[f"output_{level}"].kernel[...] = 2 * middle
    # TensorFlow pads a side of 2 at its end alone: the first pixel stands under the first tap.
    parts_of(neck)["coarse_6"].kernel[...] = -jnp.zeros((3, 3, 1, 1)).at[0, 0].set(1.0)
    parts_of(neck)["coarse_7"].kernel[...] = -middle
    return neck


# Stride 8, 16 and 32 of an image of 64 pixels: constant maps of 1, 10 and 100.
_TAPS_RETINANET_FPN = tuple(
    jnp.full((1, side, side, 1), value) for side, value in ((8, 1.0), (4, 10.0), (2, 100.0))
)


def test_levels_add_up_from_the_top_and_coarse_ones_come_from_its_convolution():
    maps = _simple_retinanet_fpn()(_TAPS_RETINANET_FPN, train=False)
    assert [m.shape[1:3] for m in maps] == [(8, 8), (4, 4), (2, 2), (1, 1), (1, 1)]
    # Sums 111, 110, 100, all doubled. Level 6 is minus level 5; ReLU leaves nothing for level 7.
    for feature_map, value in zip(maps, (222, 220, 200, -200, 0), strict=True):
        np.testing.assert_array_equal(feature_map, np.full(feature_map.shape, value, np.float32))


def test_the_activation_between_the_coarse_levels_is_the_configured_one():
    conv = schema.ConvHyperparams(activation="none", batch_norm=None)
    assert (
        float(_simple_retinanet_fpn(conv=conv)(_TAPS_RETINANET_FPN, train=False)[-1][0, 0, 0, 0])
        == 200
    )


def test_levels_are_normalised_after_others_were_made_from_them():
    norm = schema.BatchNorm(epsilon=1e-12, scale=True)
    conv = schema.ConvHyperparams(activation="relu", batch_norm=norm, force_bias=True)
    neck = _simple_retinanet_fpn(conv=conv)
    for level in range(3, 8):
        parts_of(neck)[f"norm_{level}"].mean[...] = jnp.full(1, 10.0 * level)
    values = [float(m[0, 0, 0, 0]) for m in neck(_TAPS_RETINANET_FPN, train=False)]
    # The numbers from above less 30, 40, ... 70.
    assert values == [222 - 30, 220 - 40, 200 - 50, -200 - 60, 0 - 70]


@pytest.mark.parametrize("force_bias", [True, False])
def test_convolutions_have_biases_unless_the_norm_makes_up_for_them(force_bias):
    conv = schema.ConvHyperparams(batch_norm=schema.BatchNorm(), force_bias=force_bias)
    neck = _build_retinanet_fpn((3, 4), conv, min_level=4)
    layers = ("lateral_4", "lateral_5", "output_4", "output_5", "coarse_6", "coarse_7")
    assert [(parts_of(neck)[name].bias is not None) for name in layers] == [force_bias] * 6
    assert "coarse_6.norm" not in parts_of(neck)
    assert _build_retinanet_fpn((3, 4), min_level=4).lateral[4].bias is not None
    assert "norm_4" not in parts_of(_build_retinanet_fpn((3, 4), min_level=4))


def test_a_depthwise_pyramid_is_separable_all_through():
    neck = _build_retinanet_fpn((3, 4), min_level=4, depth=8, depthwise=True)
    for name in ("lateral_4", "output_5", "coarse_7"):
        assert isinstance(parts_of(neck)[name], SeparableConv2d)
    assert parts_of(neck)["lateral_4"].depthwise_kernel.shape == (1, 1, 3, 1)
    assert neck.channels == (8,) * 4


def test_a_backbone_with_all_levels_needs_no_extra_maps():
    neck = _build_retinanet_fpn((1, 1, 1), min_level=5)
    assert "coarse_6" not in parts_of(neck)
    taps = tuple(jnp.ones((1, side, side, 1)) for side in (4, 2, 1))
    assert len(neck(taps, train=False)) == 3


def test_maps_keep_the_type_of_the_activations():
    neck = _build_retinanet_fpn((1, 1, 1), dtype=jnp.bfloat16)
    taps = tuple(tap.astype(jnp.bfloat16) for tap in _TAPS_RETINANET_FPN)
    assert {m.dtype for m in neck(taps, train=False)} == {jnp.dtype("bfloat16")}


def _build_ppn(channels, **fields):
    return PpnNeck(schema.Ppn(**fields), (channels,), build_options())


def test_each_map_holds_the_maxima_of_the_one_before():
    tap = jnp.arange(9.0).reshape(1, 3, 3, 1)
    maps = _build_ppn(1, num_maps=3)((tap,), train=True)
    np.testing.assert_array_equal(maps[0], tap)
    # Windows of 0 1 3 4, 2 5, 6 7 and 8: the last row and column stand alone.
    np.testing.assert_array_equal(maps[1].reshape(2, 2), [[4, 5], [7, 8]])
    np.testing.assert_array_equal(maps[2].ravel(), [8])


def test_a_depth_asks_for_a_projection_in_front():
    neck = _build_ppn(3, num_maps=2, depth=5)
    assert neck.base.kernel.shape == (1, 1, 3, 5)
    assert neck.channels == (5, 5)
    assert _build_ppn(3, num_maps=2).base is None


def test_levels_pass_as_they_are():
    config = schema.Identity(min_level=4, max_level=5)
    neck = IdentityNeck(config, (3, 5), build_options())
    taps = (jnp.ones((1, 4, 4, 3)), jnp.ones((1, 2, 2, 5)))
    assert neck(taps, train=True) is taps
    assert neck.channels == (3, 5)
    assert config.taps_of(schema.ResNet()) == ("group_3", "group_4")


_CONV_SSD_LAYERS = schema.ConvHyperparams(batch_norm=schema.BatchNorm())


def _build_ssd_layers(inputs, **fields):
    return SsdLayersNeck(
        schema.SsdExtraLayers(conv=_CONV_SSD_LAYERS, **fields), inputs, build_options()
    )


@pytest.mark.parametrize(
    ("multiplier", "channels", "squeezed"),
    [
        (1.0, (512, 256, 256, 128), (256, 128, 128, 64)),
        (0.75, (384, 192, 192, 96), (192, 96, 96, 48)),
        (0.1, (51, 25, 25, 16), (25, 16, 16, 16)),  # 25.6 -> 25, 12.8 -> floor 16
    ],
)
def test_widths_follow_multiplier_and_floor(multiplier, channels, squeezed):
    neck = _build_ssd_layers((7, 9), depth_multiplier=multiplier)
    assert neck.channels == (7, 9, *channels)
    kernels = [parts_of(neck)[f"extra_{k}_1x1"].kernel.shape for k in range(2, 6)]
    previous = (9, *channels[:3])
    assert kernels == [(1, 1, i, o) for i, o in zip(previous, squeezed, strict=True)]


def test_each_extra_map_halves_the_one_before_rounding_up():
    neck = _build_ssd_layers((4, 8), extra_depths=(16, 16, 16))
    taps = tuple(jax.ShapeDtypeStruct((2, *s), jnp.float32) for s in ((19, 10, 4), (10, 5, 8)))
    maps = jax.eval_shape(lambda *taps: neck(taps, train=False), *taps)
    sides = [m.shape[1:3] for m in maps]
    assert sides == [(19, 10), (10, 5), (5, 3), (3, 2), (2, 1)]


@pytest.mark.parametrize("depthwise", [False, True])
def test_kernels_have_the_given_sizes(depthwise):
    neck = _build_ssd_layers(
        (4, 8), extra_depths=(16, 16), extra_kernel_sizes=(3, 2), depthwise=depthwise
    )
    name = "depthwise" if depthwise else "3x3"
    sizes = [parts_of(neck)[f"extra_{k}_{name}"].kernel.shape[:2] for k in (2, 3)]
    assert sizes == [(3, 3), (2, 2)]
    taps = tuple(jax.ShapeDtypeStruct((2, *s), jnp.float32) for s in ((8, 8, 4), (4, 4, 8)))
    maps = jax.eval_shape(lambda *taps: neck(taps, train=False), *taps)
    assert [m.shape[1] for m in maps] == [8, 4, 2, 1]


def test_without_extra_depths_the_taps_are_the_maps():
    neck = _build_ssd_layers((4, 8), extra_depths=())
    taps = (jnp.zeros((1, 2, 2, 4)), jnp.zeros((1, 1, 1, 8)))
    assert neck(taps, train=True) == taps
    assert neck.channels == (4, 8)


def test_depthwise_layers_halve_before_they_widen():
    neck = _build_ssd_layers((4, 8), extra_depths=(16,), depthwise=True)
    assert parts_of(neck)["extra_2_depthwise"].kernel.shape == (3, 3, 16, 1)
    assert parts_of(neck)["extra_2_3x3"].kernel.shape == (1, 1, 16, 16)
    assert (parts_of(neck)["extra_2_depthwise"].stride, parts_of(neck)["extra_2_3x3"].stride) == (
        2,
        1,
    )
    taps = tuple(jax.ShapeDtypeStruct((2, *s), jnp.float32) for s in ((19, 10, 4), (10, 5, 8)))
    maps = jax.eval_shape(lambda *taps: neck(taps, train=False), *taps)
    assert maps[-1].shape == (2, 5, 3, 16)


def test_a_map_without_stride_loses_its_edges():
    """SSD300's coarsest maps: 10, 5, 3, 1 ."""
    neck = _build_ssd_layers((4,), extra_depths=(16, 16, 16, 16), extra_strides=(2, 2, 1, 1))
    tap = jax.ShapeDtypeStruct((2, 19, 19, 4), jnp.float32)
    maps = jax.eval_shape(lambda tap: neck((tap,), train=False), tap)
    assert [m.shape[1] for m in maps] == [19, 10, 5, 3, 1]


# ---- The bidirectional pyramid: cells that can be followed by hand -------------------------------


PLAIN = schema.ConvHyperparams(activation="none", batch_norm=None)


def build(inputs=(1, 1), **fields):
    fields = {"conv": PLAIN, "depth": 1, "num_repeats": 1, "min_level": 4, "max_level": 6} | fields
    neck = BiFpnNeck(schema.BiFpn(**fields), inputs, build_options())
    sums = [
        parts_of(neck)["cell_0.down_0"],
        parts_of(neck)["cell_0.down_1"],
        parts_of(neck)["cell_0.up_1"],
        parts_of(neck)["cell_0.up_2"],
    ]
    for layer in (neck.coarse, *(node.project for node in sums[:3])):
        layer.kernel[...] = jnp.ones((1, 1, 1, 1))
    for node in sums:
        # The identity: the middle of a 3x3 kernel.
        node.conv.depthwise_kernel[...] = jnp.zeros((3, 3, 1, 1)).at[1, 1].set(1)
        node.conv.kernel[...] = jnp.ones((1, 1, 1, 1))
    return neck


def taps():
    """Maps of 4x4 ones and of 2x2 tens."""
    return jnp.full((1, 4, 4, 1), 1.0), jnp.full((1, 2, 2, 1), 10.0)


def values(neck):
    # One program is compiled faster than every operation by itself.
    maps = jax.jit(partial(neck, train=False))(taps())
    assert [x.shape[1:] for x in maps] == [(4, 4, 1), (2, 2, 1), (1, 1, 1)]
    assert all(np.ptp(x) == 0 for x in maps)
    return [float(x.ravel()[0]) for x in maps]


def test_sums_go_down_and_up_again():
    # Level 6 is level 5, pooled: 10. Down: 10 + 10 = 20, 1 + 20 = 21.
    # Up: 10 + 20 + 21 = 51, and 10 + 51 = 61 without a sum on the way down.
    assert values(build(combine="sum")) == [21, 51, 61]


def test_weights_are_at_least_0_and_divided_by_their_sum():
    neck = build()
    for name in ("down_0", "down_1", "up_1", "up_2"):
        node = parts_of(neck)[f"cell_0.{name}"]
        weights = [3.0, 1.0, -5.0][: node.weights.shape[0]]
        node.weights[...] = jnp.asarray(weights)[:, None]
    total = 4 + 1e-4
    down_1 = (3 * 10 + 10) / total
    down_0 = (3 * 1 + down_1) / total
    up_1 = (3 * 10 + down_1) / total
    expected = [down_0, up_1, (3 * 10 + up_1) / total]
    np.testing.assert_allclose(values(neck), expected, rtol=1e-6)


def test_a_weighted_sum_takes_weights_as_they_are():
    neck = build(combine="weighted_sum")
    parts_of(neck)["cell_0.up_2"].weights[...] = jnp.asarray([[-2.0], [0.5]])
    assert values(neck) == [21, 51, -20 + 25.5]


def test_later_cells_have_no_projections():
    neck = build(num_repeats=2)
    assert "cell_0.up_1.project" in parts_of(neck)
    assert "cell_0.up_2.project" not in parts_of(neck)
    assert not any((parts_of(neck)[f"cell_1.up_{place}"].project is not None) for place in (1, 2))


def test_a_pyramid_without_coarser_levels_is_refused():
    with pytest.raises(UserError, match="ends above the backbone's levels, not at 5") as caught:
        BiFpnNeck(schema.BiFpn(min_level=4, max_level=5), (8, 8), build_options())
    assert caught.value.where == "model.neck.max_level"


def _build_nas(inputs, dtype=jnp.float32, **fields):
    config = schema.NasFpn(**{"conv": _PLAIN, "depth": 1, "num_repeats": 1} | fields)
    return NasFpnNeck(config, inputs, build_options(dtype=dtype))


def test_the_published_cell_joins_maps_that_no_node_reads():
    steps, outputs = plan_cell(schema.NasFpn())
    # In the original's graph node 9 adds P5 (2), node 10 adds P7 (4). Gates come from the
    # coarser level: 6 over 4, then node 8 over 7, 9 over 6, 10 over 9.
    assert steps == (
        Step(4, (1, 3), 1, ()),
        Step(4, (1, 5), None, ()),
        Step(3, (0, 6), None, ()),
        Step(4, (6, 7), None, ()),
        Step(5, (7, 8), 1, (2,)),
        Step(7, (6, 9), 1, (4,)),
        Step(6, (9, 10), 1, ()),
    )
    assert outputs == (7, 8, 9, 11, 10)


def test_sum_only_has_no_gates():
    steps, _ = plan_cell(schema.NasFpn(sum_only=True))
    assert {step.gate for step in steps} == {None}


def test_of_equal_levels_the_first_input_gates():
    # Map 0 comes in, map 1 is the first node; both are of level 3.
    before = schema.NasFpnNode(level=3, inputs=(0, 0))
    node = schema.NasFpnNode(level=3, combine="attention", inputs=(1, 0), output=True)
    config = schema.NasFpn(min_level=3, max_level=3, cell=(before, node))
    assert plan_cell(config)[0][1].gate == 0


def _cell(*nodes):
    """Levels 3 and 4; each node is level, combine and inputs, and leaves the cell."""
    cell = tuple(
        schema.NasFpnNode(level=level, combine=combine, inputs=inputs, output=True)
        for level, combine, inputs in nodes
    )
    return {"min_level": 3, "max_level": 4, "cell": cell}


def _pass_on(neck):
    """Blocks that change nothing."""
    for number in (2, 3):
        kernel = parts_of(neck)[f"cell_0.node_{number}"].block.kernel
        kernel[...] = jnp.zeros((3, 3, 1, 1)).at[1, 1].set(1.0)
    return neck


_FINE = jnp.arange(16.0).reshape(1, 4, 4, 1)
# The maxima of its quarters.
_POOLED = np.array([[5.0, 7.0], [13.0, 15.0]])


def test_maps_go_down_by_their_maxima_and_up_by_repetition():
    neck = _pass_on(_build_nas((1,), **_cell((4, "sum", (0, 0)), (3, "sum", (1, 1)))))
    fine, coarse = neck((_FINE,), train=False)
    # The level that the backbone lacks is pooled too, and joins the maps that no node reads.
    np.testing.assert_array_equal(coarse[0, :, :, 0], 3 * _POOLED)
    np.testing.assert_array_equal(fine[0, :, :, 0], 2 * np.kron(_POOLED, np.ones((2, 2))))


def test_the_greatest_values_of_the_coarser_map_gate_the_finer_one():
    neck = _pass_on(_build_nas((1, 1), **_cell((4, "attention", (0, 1)), (3, "sum", (0, 0)))))
    coarse = jnp.full((1, 2, 2, 1), -1.0).at[0, 0, 0, 0].set(-2.0)
    _, combined = neck((_FINE, coarse), train=False)
    # sigmoid(-1) = .2689414 times the pooled map, and the coarse map itself; ReLU cuts nothing.
    expected = _POOLED * 0.2689414 + np.asarray(coarse[0, :, :, 0])
    assert expected.min() < 0
    np.testing.assert_allclose(combined[0, :, :, 0], np.maximum(expected, 0), rtol=1e-6)


def test_a_map_that_no_node_reads_is_added_to_its_levels_output():
    neck = _pass_on(_build_nas((1, 1), **_cell((3, "sum", (0, 0)), (4, "sum", (2, 2)))))
    coarse = jnp.full((1, 2, 2, 1), 100.0)
    _, combined = neck((_FINE, coarse), train=False)
    # Node 2 is twice the fine map; node 3 reads it twice and adds map 1.
    np.testing.assert_array_equal(combined[0, :, :, 0], 4 * _POOLED + 100)


def test_the_activation_precedes_the_block():
    neck = _pass_on(_build_nas((1, 1), **_cell((3, "sum", (0, 0)), (4, "sum", (1, 1)))))
    parts_of(neck)["cell_0.node_2.block"].bias[...] = jnp.full(1, -7.0)
    fine, _ = neck((-_FINE, jnp.ones((1, 2, 2, 1))), train=False)
    # All sums are negative or 0, and what ReLU leaves gets the bias.
    np.testing.assert_array_equal(fine, np.full((1, 4, 4, 1), -7.0))


def test_taps_of_another_depth_are_squeezed_and_normalised():
    conv = schema.ConvHyperparams(batch_norm=schema.BatchNorm(), force_bias=True)
    neck = _build_nas((3, 8), depth=8, conv=conv, **_cell((3, "sum", (0, 0)), (4, "sum", (1, 1))))
    assert parts_of(neck)["resample_3"].kernel.shape == (1, 1, 3, 8)
    assert parts_of(neck)["resample_3"].activation == "none"
    assert parts_of(neck)["resample_3"].bias is not None
    assert "resample_4" not in parts_of(neck)
    assert parts_of(neck)["cell_0.node_2.block"].activation == "none"


@pytest.mark.parametrize("norm", [None, schema.BatchNorm()])
def test_maps_keep_the_type_of_the_activations_in_both_directions(norm):
    conv = schema.ConvHyperparams(batch_norm=norm)
    cell = _cell((3, "attention", (0, 1)), (4, "sum", (0, 2)))
    neck = _build_nas((3,), jnp.bfloat16, depth=8, conv=conv, num_repeats=2, **cell)
    taps = (jnp.ones((1, 4, 4, 3), jnp.bfloat16),)
    maps = jax.eval_shape(lambda taps: neck(taps, train=False), taps)
    assert {m.dtype for m in maps} == {jnp.dtype("bfloat16")}


def test_separable_convolutions_all_through():
    neck = _build_nas(
        (3,), depth=8, depthwise=True, **_cell((3, "sum", (0, 0)), (4, "sum", (1, 1)))
    )
    assert isinstance(parts_of(neck)["resample_3"], SeparableConv2d)
    assert isinstance(parts_of(neck)["cell_0.node_3.block"], SeparableConv2d)


def _bottlenecks(**fields):
    cell = _cell((3, "sum", (0, 1)), (4, "sum", (0, 2)))
    return _build_nas((4, 4), depth=4, num_repeats=2, block="bottleneck", **cell, **fields)


def test_bottlenecks_quadruple_the_channels_and_the_next_node_squeezes_them():
    neck = _bottlenecks(block_conv=schema.ConvHyperparams(batch_norm=schema.BatchNorm()))
    assert neck.channels == (16, 16)
    first, second = parts_of(neck)["cell_0.node_3"], parts_of(neck)["cell_1.node_2"]
    assert "resample_0" not in parts_of(first)
    assert parts_of(first)["resample_1"].kernel.shape == (1, 1, 16, 4)
    assert (
        parts_of(second)["resample_0"].kernel.shape
        == parts_of(second)["resample_1"].kernel.shape
        == (1, 1, 16, 4)
    )
    assert first.block.shortcut.kernel.shape == (1, 1, 4, 16)
    assert parts_of(first)["block.conv_2"].bias is None
    taps = (jnp.ones((2, 4, 4, 4)), jnp.ones((2, 2, 2, 4)))
    maps = jax.eval_shape(lambda taps: neck(taps, train=False), taps)
    assert [m.shape for m in maps] == [(2, 4, 4, 16), (2, 2, 2, 16)]


@pytest.mark.parametrize(
    "fields",
    [
        {"block": "bottleneck", "drop_connect_rate": 0.5},
        {"block": "bottleneck", "drop_block": schema.DropBlock(keep_probability=0.5)},
        {"drop_block": schema.DropBlock(keep_probability=0.5, block_size=2)},
    ],
)
def test_training_drops_by_the_key(fields):
    neck = _build_nas(
        (4, 4), depth=4, num_repeats=1, **_cell((3, "sum", (0, 1)), (4, "sum", (0, 2))), **fields
    )
    rng = np.random.default_rng(0)
    taps = tuple(jnp.asarray(rng.normal(size=(8, side, side, 4)), jnp.float32) for side in (4, 2))

    def run(key, *, train):
        return np.asarray(neck(taps, train=train, dropout_key=key)[0])

    first, again, other = (run(jax.random.key(seed), train=True) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    np.testing.assert_array_equal(run(jax.random.key(1), train=False), run(None, train=False))
    with pytest.raises(ValueError, match="dropout_key"):
        run(None, train=True)


def test_sums_of_all_maps_go_down_and_up_again():
    # Constant maps stay what they are when they are doubled and halved.
    config = schema.Pan(conv=_CONV, depth=1, min_level=3, max_level=5)
    neck = PanNeck(config, (1, 1, 1), build_options())
    for level in (3, 4, 5):
        parts_of(neck)[f"lateral_{level}"].kernel[...] = jnp.ones((1, 1, 1, 1))
    maps = neck(_TAPS, train=True)
    # Down: 100, 10 + 100, 1 + 110. Up: 111, 110 + 111, 100 + 221.
    for feature_map, tap, value in zip(maps, _TAPS, (111, 221, 321), strict=True):
        np.testing.assert_array_equal(feature_map, np.full(tap.shape, value, np.float32))
    assert neck.channels == (1, 1, 1)
