"""The pooling pyramid: maxima of 2x2 windows."""

import jax.numpy as jnp
import numpy as np

from stillbox.experiment import schema
from stillbox.models.necks.ppn import PpnNeck
from stillbox.models.parts import BuildOptions


def _build(channels, **fields):
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    return PpnNeck(schema.Ppn(**fields), (channels,), options)


def test_each_map_holds_the_maxima_of_the_one_before():
    tap = jnp.arange(9.0).reshape(1, 3, 3, 1)
    maps = _build(1, num_maps=3)((tap,), train=True)
    np.testing.assert_array_equal(maps[0], tap)
    # Windows of 0 1 3 4, 2 5, 6 7 and 8: the last row and column stand alone.
    np.testing.assert_array_equal(maps[1].reshape(2, 2), [[4, 5], [7, 8]])
    np.testing.assert_array_equal(maps[2].ravel(), [8])


def test_a_depth_asks_for_a_projection_in_front():
    neck = _build(3, num_maps=2, depth=5)
    assert neck.base.kernel.shape == (1, 1, 3, 5)
    assert neck.channels == (5, 5)
    assert not hasattr(_build(3, num_maps=2), "base")
