"""Pooling against XLA's window reduction, forward and backward; dropout, whole or in blocks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.lowering import lowering_for_tflite
from stillbox.models.layers.lowering import pooling, primitives
from stillbox.models.layers.lowering.pooling import max_pool, sum_pool
from stillbox.models.layers.resampling import double, halve
from stillbox.models.layers.stochastic import drop_block, drop_connect, fold_key
from tests.helpers import at_once


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("sides", [(8, 8), (7, 5), (1, 2)])
def test_values_and_gradients_are_those_of_a_window_reduction(sides, size, stride):
    x = np.random.default_rng(0).normal(size=(2, *sides, 3)).astype(np.float32)

    def run(function, x):
        pooled, pull = jax.vjp(partial(function, size=size, stride=stride), x)
        return pooled, pull(2 * pooled)[0]

    both = [at_once(partial(run, function), x) for function in (max_pool, window_reduction)]
    values, gradients = zip(*both, strict=True)
    np.testing.assert_array_equal(*values)
    np.testing.assert_allclose(*gradients, rtol=1e-6)


def test_a_window_may_have_more_elements_than_a_byte_counts():
    x = np.random.default_rng(1).normal(size=(1, 17, 17, 2)).astype(np.float32)
    (gradient,) = jax.vjp(lambda x: max_pool(x, 17, 1, padding="valid"), x)[1](
        jnp.ones((1, 1, 1, 2))
    )
    np.testing.assert_array_equal(gradient, x == x.max(axis=(1, 2), keepdims=True))


def window_reduction(x, size, stride, padding="SAME"):
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, padding)


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (5, 2), (5, 4), (3, 1), (2, 3)])
def test_the_first_of_equal_elements_takes_the_gradient(size, stride):
    # Few different values, and zeros above all, as behind a ReLU: nearly every window has a tie.
    random = np.random.default_rng(2)
    x = np.maximum(random.integers(-3, 3, size=(2, 11, 14, 3)), 0).astype(np.float32)
    shape = 2, -(-11 // stride), -(-14 // stride), 3
    above = random.normal(size=shape).astype(np.float32)

    def run(function, x, above):
        return jax.vjp(lambda x: function(x, size, stride), x)[1](above)[0]

    ours, expected = (at_once(partial(run, f), x, above) for f in (max_pool, window_reduction))
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)


def test_bfloat16_stays_and_its_gradients_are_summed_in_float32():
    random = np.random.default_rng(3)
    x = jnp.zeros((1, 3, 3, 1), jnp.bfloat16).at[0, 1, 1, 0].set(1.0)
    y, pull = jax.vjp(lambda x: max_pool(x, 3, 1), x)
    assert y.dtype == jnp.bfloat16
    # All nine windows have the middle as their maximum.
    gradient = jnp.asarray(random.normal(size=y.shape), jnp.bfloat16)
    (slope,) = pull(gradient)
    assert slope.dtype == jnp.bfloat16
    total = np.sum(np.asarray(gradient, np.float64)).astype(jnp.bfloat16)
    assert slope[0, 1, 1, 0] == total
    assert np.count_nonzero(np.asarray(slope, np.float32)) == 1


def test_nan_is_propagated():
    x = jnp.zeros((1, 4, 4, 1)).at[0, 1, 2, 0].set(jnp.nan)
    np.testing.assert_array_equal(
        jnp.isnan(max_pool(x, 2, 2))[0, :, :, 0], [[False, True], [False, False]]
    )


def test_where_images_are_cut_the_windows_are_those_of_xla(monkeypatch):
    monkeypatch.setattr(primitives, "is_spatially_partitioned", lambda: True)
    x = jnp.asarray(np.random.default_rng(4).normal(size=(1, 6, 6, 2)), jnp.float32)
    function = jax.jit(lambda x: jax.vjp(lambda x: max_pool(x, 3, 2), x)[1](jnp.ones((1, 3, 3, 2))))
    assert "select_and_scatter" in function.lower(x).as_text()


@pytest.mark.parametrize("sides", [(8, 8), (7, 5), (150, 3)])
def test_symmetric_padding_is_that_of_pytorch(sides):
    x = np.random.default_rng(1).normal(size=(2, *sides, 3)).astype(np.float32)
    # max_pool2d(kernel_size=3, stride=2, padding=1): (side + 2 - 3) // 2 + 1 windows.
    ours = at_once(max_pool, x, size=3, stride=2, padding="symmetric")
    assert ours.shape[1:3] == tuple((side - 1) // 2 + 1 for side in sides)
    expected = window_reduction(x, 3, 2, ((0, 0), (1, 1), (1, 1), (0, 0)))
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize(("sides", "size"), [((8, 7), 3), ((2, 9), 5)])
def test_sums_and_gradients_are_those_of_a_window_reduction(sides, size, partitioned, monkeypatch):
    monkeypatch.setattr(pooling, "is_spatially_partitioned", lambda: partitioned)
    random = np.random.default_rng(5)
    x, weights = (random.normal(size=(2, *sides, 3)).astype(np.float32) for _ in range(2))

    def plain(x):
        window = (1, size, size, 1)
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, (1,) * 4, "SAME")

    def run(function, x):
        return function(x), jax.grad(lambda x: jnp.sum(function(x) * weights))(x)

    both = at_once(partial(run, partial(sum_pool, size=size)), x), at_once(partial(run, plain), x)
    for ours, expected in zip(*both, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


KEY = jax.random.key(0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_drop_connect_leaves_out_whole_images_and_keeps_the_mean(dtype):
    x = jnp.ones((4000, 2, 1, 2), dtype)
    y = at_once(drop_connect, x, rate=0.2, key=KEY)
    assert y.dtype == dtype
    y = np.asarray(y, np.float32)
    assert (y == y[:, :1, :, :1]).all()
    # Values that stay are divided by .8, which bfloat16 knows in eight bits.
    kept = y[:, 0, 0, 0] > 0
    np.testing.assert_allclose(y[kept], 1.25, rtol=2**-8)
    # Four standard deviations of 4000 coins of .8: 4 * sqrt(.16 / 4000) = .025.
    assert abs(kept.mean() - 0.8) < 0.025


def test_drop_block_leaves_out_squares_within_the_map():
    # Wide and low: where the original tests rows against the width, squares hang over the edge.
    x = jnp.ones((50, 6, 20, 3))
    config = schema.DropBlock(keep_probability=0.9, block_size=3)
    y = np.asarray(at_once(drop_block, x, config=config, key=KEY))
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
    y = np.asarray(at_once(drop_block, jnp.ones((500, 2, 2, 1)), config=config, key=KEY))
    assert (y == y[:, :1, :1]).all()
    # Four standard deviations of 500 coins: 4 * sqrt(.25 / 500) = .09.
    assert abs((y > 0).mean() - 0.5) < 0.09


def test_everything_dropped_gives_zeros_and_finite_gradients():
    config = schema.DropBlock(keep_probability=1e-9, block_size=2)
    slope = jax.value_and_grad(lambda x: drop_block(x, config, KEY).sum())
    value, gradient = at_once(slope, jnp.ones((1, 2, 2, 1)))
    assert value == 0
    assert (gradient == 0).all()


def test_a_missing_key_is_an_error():
    for function, option in ((drop_connect, 0.5), (drop_block, schema.DropBlock())):
        with pytest.raises(ValueError, match="dropout_key"):
            function(jnp.ones((1, 1, 1, 1)), option, None)
    assert fold_key(None, 3) is None


def test_bilinear_resizing_by_hand():
    # Centres at 1/4, 3/4, 5/4 and 7/4 of a pixel; what is beyond an edge is the pixel at it.
    x = jnp.array([0.0, 4.0]).reshape(1, 1, 2, 1)
    np.testing.assert_array_equal(double(x).reshape(2, 4), [[0, 1, 3, 4]] * 2)
    # Means of four; of the last of an odd number, with itself.
    y = jnp.arange(12.0).reshape(1, 4, 3, 1)
    np.testing.assert_array_equal(halve(y).reshape(2, 2), [[2, 3.5], [8, 9.5]])


@pytest.mark.parametrize("resize", [double, halve])
def test_bilinear_resizing_is_that_of_jax(resize):
    x = np.random.default_rng(4).normal(size=(2, 6, 8, 3)).astype(np.float32)
    ours = resize(jnp.asarray(x))
    theirs = jax.image.resize(x, ours.shape, "linear", antialias=False)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("side", [7, 8])
def test_repeated_edges_are_never_a_maximum(side):
    x = np.random.default_rng(5).normal(size=(1, side, side, 2)).astype(np.float32)
    pool = partial(max_pool, size=3, stride=2, padding="symmetric")
    with lowering_for_tflite():
        text = str(jax.make_jaxpr(pool)(x))
        repeated = pool(x)
    assert "padding=((0, 0), (0, 0), (0, 0), (0, 0))" in text
    np.testing.assert_array_equal(repeated, pool(x))
