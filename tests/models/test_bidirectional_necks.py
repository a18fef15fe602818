"""The bidirectional pyramid: cells that can be followed by hand.

Whole detectors are compared with the executed original in tests/proofs/test_ssd_zoo_goldens.py.

NAS-FPN: the plan of its cell, and cells that can be followed by hand.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.layers import SeparableConv2d
from stillbox.models.necks.fpn import BiFpnNeck
from stillbox.models.necks.nas_fpn import NasFpnNeck, Step, plan_cell
from stillbox.models.parts import BuildOptions

PLAIN = schema.ConvHyperparams(activation="none", batch_norm=None)


def build(inputs=(1, 1), **fields):
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    fields = {"conv": PLAIN, "depth": 1, "num_repeats": 1, "min_level": 4, "max_level": 6} | fields
    neck = BiFpnNeck(schema.BiFpn(**fields), inputs, options)
    sums = [neck.cell_0.down_0, neck.cell_0.down_1, neck.cell_0.up_1, neck.cell_0.up_2]
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
        node = getattr(neck.cell_0, name)
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
    neck.cell_0.up_2.weights[...] = jnp.asarray([[-2.0], [0.5]])
    assert values(neck) == [21, 51, -20 + 25.5]


def test_later_cells_have_no_projections():
    neck = build(num_repeats=2)
    assert hasattr(neck.cell_0.up_1, "project")
    assert not hasattr(neck.cell_0.up_2, "project")
    assert not any(hasattr(getattr(neck.cell_1, f"up_{place}"), "project") for place in (1, 2))


def test_a_pyramid_without_coarser_levels_is_refused():
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    with pytest.raises(UserError, match="ends above the backbone's levels, not at 5") as caught:
        BiFpnNeck(schema.BiFpn(min_level=4, max_level=5), (8, 8), options)
    assert caught.value.where == "model.neck.max_level"


_PLAIN = schema.ConvHyperparams(activation="relu", batch_norm=None)


def _build(inputs, dtype=jnp.float32, **fields):
    options = BuildOptions(dtype=dtype, freeze_norm=False, rng=np.random.default_rng(0))
    config = schema.NasFpn(**{"conv": _PLAIN, "depth": 1, "num_repeats": 1} | fields)
    return NasFpnNeck(config, inputs, options)


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
        kernel = getattr(neck.cell_0, f"node_{number}").block.kernel
        kernel[...] = jnp.zeros((3, 3, 1, 1)).at[1, 1].set(1.0)
    return neck


_FINE = jnp.arange(16.0).reshape(1, 4, 4, 1)
# The maxima of its quarters.
_POOLED = np.array([[5.0, 7.0], [13.0, 15.0]])


def test_maps_go_down_by_their_maxima_and_up_by_repetition():
    neck = _pass_on(_build((1,), **_cell((4, "sum", (0, 0)), (3, "sum", (1, 1)))))
    fine, coarse = neck((_FINE,), train=False)
    # The level that the backbone lacks is pooled too, and joins the maps that no node reads.
    np.testing.assert_array_equal(coarse[0, :, :, 0], 3 * _POOLED)
    np.testing.assert_array_equal(fine[0, :, :, 0], 2 * np.kron(_POOLED, np.ones((2, 2))))


def test_the_greatest_values_of_the_coarser_map_gate_the_finer_one():
    neck = _pass_on(_build((1, 1), **_cell((4, "attention", (0, 1)), (3, "sum", (0, 0)))))
    coarse = jnp.full((1, 2, 2, 1), -1.0).at[0, 0, 0, 0].set(-2.0)
    _, combined = neck((_FINE, coarse), train=False)
    # sigmoid(-1) = .2689414 times the pooled map, and the coarse map itself; ReLU cuts nothing.
    expected = _POOLED * 0.2689414 + np.asarray(coarse[0, :, :, 0])
    assert expected.min() < 0
    np.testing.assert_allclose(combined[0, :, :, 0], np.maximum(expected, 0), rtol=1e-6)


def test_a_map_that_no_node_reads_is_added_to_its_levels_output():
    neck = _pass_on(_build((1, 1), **_cell((3, "sum", (0, 0)), (4, "sum", (2, 2)))))
    coarse = jnp.full((1, 2, 2, 1), 100.0)
    _, combined = neck((_FINE, coarse), train=False)
    # Node 2 is twice the fine map; node 3 reads it twice and adds map 1.
    np.testing.assert_array_equal(combined[0, :, :, 0], 4 * _POOLED + 100)


def test_the_activation_precedes_the_block():
    neck = _pass_on(_build((1, 1), **_cell((3, "sum", (0, 0)), (4, "sum", (1, 1)))))
    neck.cell_0.node_2.block.bias[...] = jnp.full(1, -7.0)
    fine, _ = neck((-_FINE, jnp.ones((1, 2, 2, 1))), train=False)
    # All sums are negative or 0, and what ReLU leaves gets the bias.
    np.testing.assert_array_equal(fine, np.full((1, 4, 4, 1), -7.0))


def test_taps_of_another_depth_are_squeezed_and_normalised():
    conv = schema.ConvHyperparams(batch_norm=schema.BatchNorm(), force_bias=True)
    neck = _build((3, 8), depth=8, conv=conv, **_cell((3, "sum", (0, 0)), (4, "sum", (1, 1))))
    assert neck.resample_3.kernel.shape == (1, 1, 3, 8)
    assert neck.resample_3.activation == "none"
    assert all(hasattr(neck.resample_3, name) for name in ("bias", "norm"))
    assert not hasattr(neck, "resample_4")
    assert neck.cell_0.node_2.block.activation == "none"


@pytest.mark.parametrize("norm", [None, schema.BatchNorm()])
def test_maps_keep_the_type_of_the_activations(norm):
    conv = schema.ConvHyperparams(batch_norm=norm)
    cell = _cell((3, "attention", (0, 1)), (4, "sum", (0, 2)))
    neck = _build((3,), jnp.bfloat16, depth=8, conv=conv, num_repeats=2, **cell)
    taps = (jnp.ones((1, 4, 4, 3), jnp.bfloat16),)
    maps = jax.eval_shape(lambda taps: neck(taps, train=False), taps)
    assert {m.dtype for m in maps} == {jnp.dtype("bfloat16")}


def test_separable_convolutions_all_through():
    neck = _build((3,), depth=8, depthwise=True, **_cell((3, "sum", (0, 0)), (4, "sum", (1, 1))))
    assert isinstance(neck.resample_3, SeparableConv2d)
    assert isinstance(neck.cell_0.node_3.block, SeparableConv2d)


def _bottlenecks(**fields):
    cell = _cell((3, "sum", (0, 1)), (4, "sum", (0, 2)))
    return _build((4, 4), depth=4, num_repeats=2, block="bottleneck", **cell, **fields)


def test_bottlenecks_quadruple_the_channels_and_the_next_node_squeezes_them():
    neck = _bottlenecks(block_conv=schema.ConvHyperparams(batch_norm=schema.BatchNorm()))
    assert neck.channels == (16, 16)
    first, second = neck.cell_0.node_3, neck.cell_1.node_2
    assert not hasattr(first, "resample_0")
    assert first.resample_1.kernel.shape == (1, 1, 16, 4)
    assert second.resample_0.kernel.shape == second.resample_1.kernel.shape == (1, 1, 16, 4)
    assert first.block.shortcut.kernel.shape == (1, 1, 4, 16)
    assert not hasattr(first.block.conv_2, "bias")
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
    neck = _build(
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
