"""The bidirectional pyramid: cells that can be followed by hand.

Whole detectors are compared with the executed original in tests/proofs/test_ssd_zoo_goldens.py.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.necks.bifpn import BiFpnNeck
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
    with pytest.raises(UserError, match="ends above the backbone's levels, not at 5") as caught:
        BiFpnNeck(schema.BiFpn(min_level=4, max_level=5), (8, 8), None)
    assert caught.value.where == "model.neck.max_level"
