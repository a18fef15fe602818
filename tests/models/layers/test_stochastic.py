"""What training leaves out at random ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.layers.stochastic import drop_block, drop_connect, fold_key

KEY = jax.random.key(0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_drop_connect_leaves_out_whole_images_and_keeps_the_mean(dtype):
    x = jnp.ones((4000, 2, 1, 2), dtype)
    y = drop_connect(x, 0.2, KEY)
    assert y.dtype == dtype
    y = np.asarray(y, np.float32)
    assert (y == y[:, :1, :, :1]).all()
    # Those that stay are divided by .8, which bfloat16 knows in eight bits.
    kept = y[:, 0, 0, 0] > 0
    np.testing.assert_allclose(y[kept], 1.25, rtol=2**-8)
    # Four standard deviations of 4000 coins of .8: 4 * sqrt(.16 / 4000) = .025.
    assert abs(kept.mean() - 0.8) < 0.025


def test_drop_block_leaves_out_squares_within_the_map():
    # Wide and low: where the original tests rows against the width, squares hang over the edge.
    x = jnp.ones((50, 6, 20, 3))
    y = np.asarray(drop_block(x, schema.DropBlock(keep_probability=0.9, block_size=3), KEY))
    dropped = y == 0
    assert 0.05 < dropped.mean() < 0.15
    np.testing.assert_allclose(y[~dropped], 1 / (1 - dropped.mean()), rtol=1e-6)
    # Every value that is left out lies in a square of nothing else.
    windows = np.lib.stride_tricks.sliding_window_view(dropped, (3, 3), axis=(1, 2))
    corners = windows.all(axis=(-1, -2))
    covered = np.zeros_like(dropped)
    for row in range(3):
        for column in range(3):
            covered[:, row : row + 4, column : column + 18] |= corners
    assert (covered == dropped).all()
    # Squares reach the last row and column, and channels are drawn one by one.
    assert dropped[:, -1].any() and dropped[:, :, -1].any()
    assert (dropped[..., 0] != dropped[..., 1]).any()


def test_drop_block_is_as_large_as_a_map_that_is_smaller():
    config = schema.DropBlock(keep_probability=0.5, block_size=7)
    y = np.asarray(drop_block(jnp.ones((500, 2, 2, 1)), config, KEY))
    assert (y == y[:, :1, :1]).all()
    # Four standard deviations of 500 coins: 4 * sqrt(.25 / 500) = .09.
    assert abs((y > 0).mean() - 0.5) < 0.09


def test_everything_dropped_gives_zeros_and_finite_gradients():
    config = schema.DropBlock(keep_probability=1e-9, block_size=2)
    value, gradient = jax.value_and_grad(lambda x: drop_block(x, config, KEY).sum())(
        jnp.ones((1, 2, 2, 1))
    )
    assert value == 0
    assert (gradient == 0).all()


def test_a_missing_key_is_an_error():
    with pytest.raises(ValueError, match="dropout_key"):
        drop_connect(jnp.ones((1, 1, 1, 1)), 0.5, None)
    with pytest.raises(ValueError, match="dropout_key"):
        drop_block(jnp.ones((1, 1, 1, 1)), schema.DropBlock(), None)
    assert fold_key(None, 3) is None
