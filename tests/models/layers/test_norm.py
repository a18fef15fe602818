"""Batch normalisation against TF1's fused kernel and against autodiff of its definition."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.experiment import schema
from stillbox.lowering import lowering
from stillbox.models.layers.hyperparams import ACTIVATIONS
from stillbox.models.layers.lowering.primitives import (
    add_bias,
    channel_sum,
    channel_sums,
    sum_of_rows,
)
from stillbox.models.layers.norm import (
    NormLayer,
    batch_statistics,
    normalize_batch,
    normalize_groups,
)
from tests.helpers import at_once

ZEROS = jnp.zeros(4)


def _random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_moving_variance_takes_the_unbiased_one():
    # Values 0 and 2: mean 1, biased variance 1, unbiased 2. At decay .9, from 0 and 1:
    # mean .9 * 0 + .1 * 1 = .1, variance .9 * 1 + .1 * 2 = 1.1 .
    norm = NormLayer(1, schema.BatchNorm(decay=0.9), frozen=False)
    y = norm(jnp.array([0.0, 2.0]).reshape(2, 1, 1, 1), "none", train=True)
    np.testing.assert_allclose(norm.mean[...], [0.1], rtol=1e-6)
    np.testing.assert_allclose(norm.var[...], [1.1], rtol=1e-6)
    # Normalised by the biased one: (0 - 1) / sqrt(1 + .001).
    np.testing.assert_allclose(y.ravel(), [-0.9995, 0.9995], atol=1e-5)


def test_evaluation_uses_the_moving_statistics_and_leaves_them():
    norm = NormLayer(1, schema.BatchNorm(epsilon=0.0, scale=True), frozen=False)
    norm.mean[...], norm.var[...] = jnp.array([1.0]), jnp.array([4.0])
    norm.scale[...], norm.bias[...] = jnp.array([3.0]), jnp.array([0.5])
    # (5 - 1) / 2 * 3 + .5 = 6.5
    assert float(norm(jnp.full((1, 1, 1, 1), 5.0), "none", train=False)[0, 0, 0, 0]) == 6.5
    assert float(norm.mean[0]) == 1.0


@pytest.mark.parametrize(("frozen", "train"), [(True, True), (False, False)])
def test_frozen_norm_in_training_is_evaluation(frozen, train):
    norm = NormLayer(3, schema.BatchNorm(train=train), frozen=frozen)
    x = jnp.asarray(_random(2, 4, 4, 3))
    y = norm(x, "none", train=True)
    np.testing.assert_array_equal(y, norm(x, "none", train=False))
    assert not norm.mean[...].any()


@pytest.mark.parametrize(("center", "scale"), [(True, False), (False, True), (False, False)])
def test_only_the_wanted_parameters_exist(center, scale):
    norm = NormLayer(3, schema.BatchNorm(center=center, scale=scale), frozen=False)
    assert len(jax.tree.leaves(nnx.state(norm, nnx.Param))) == center + scale
    assert norm(jnp.asarray(_random(2, 4, 4, 3)), "relu", train=True).shape == (2, 4, 4, 3)


@pytest.mark.parametrize("activation", ["none", "relu", "relu6", "swish"])
def test_normalization_and_its_gradients_equal_autodiff_of_the_definition(activation):
    x, above = (jnp.asarray(4 * _random(3, 5, 7, 4, seed=seed)) for seed in (0, 1))
    scale, bias = jnp.asarray(2 + _random(4, seed=2)), jnp.asarray(_random(4, seed=3))

    def defined(x, scale, bias):
        mean, var = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        y = (x - mean) / jnp.sqrt(var + 0.001) * scale + bias
        return jnp.sum(ACTIVATIONS[activation](y) * above)

    def ours(x, scale, bias):
        return jnp.sum(normalize_batch(x, scale, bias, ZEROS, 0.001, activation)[0] * above)

    expected, actual = (
        at_once(jax.value_and_grad(function, argnums=(0, 1, 2)), x, scale, bias)
        for function in (defined, ours)
    )
    for mine, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5 * np.abs(theirs).max())


def test_groups_are_normalized_separately_and_share_parameters():
    x, above = (jnp.asarray(_random(6, 5, 7, 4, seed=seed)) for seed in (0, 1))
    scale, bias = jnp.asarray(2 + _random(4, seed=2)), jnp.asarray(_random(4, seed=3))

    def one_by_one(x, scale, bias):
        parts = [
            normalize_batch(x[n : n + 2], scale, bias, ZEROS, 0.001, "relu") for n in (0, 2, 4)
        ]
        y, mean, var = (list(values) for values in zip(*parts, strict=True))
        return jnp.sum(jnp.concatenate(y) * above), (jnp.stack(mean), jnp.stack(var))

    def together(x, scale, bias):
        y, mean, var = normalize_groups(x, scale, bias, ZEROS, 0.001, "relu", 2)
        return jnp.sum(y * above), (mean, var)

    both = [
        jax.tree.leaves(
            at_once(jax.value_and_grad(function, (0, 1, 2), has_aux=True), x, scale, bias)
        )
        for function in (one_by_one, together)
    ]
    for theirs, mine in zip(*both, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_moving_statistics_follow_the_mean_over_the_groups():
    # Groups (0, 2) and (4, 8): means 1 and 6, unbiased variances 2 and 8. At decay .9, from 0
    # and 1: mean .1 * 3.5 = .35, variance .9 * 1 + .1 * 5 = 1.4.
    config = schema.BatchNorm(decay=0.9, epsilon=0.0, statistics="groups", group_size=2)
    norm = NormLayer(1, config, frozen=False)
    y = norm(jnp.array([0.0, 2.0, 4.0, 8.0]).reshape(4, 1, 1, 1), "none", train=True)
    np.testing.assert_allclose(norm.mean[...], [0.35], rtol=1e-6)
    np.testing.assert_allclose(norm.var[...], [1.4], rtol=1e-6)
    np.testing.assert_allclose(y.ravel(), [-1, 1, -1, 1], rtol=1e-6)


def test_bfloat16_is_normalized_in_float32():
    x = jnp.asarray(100 + _random(4, 9, 9, 2), jnp.bfloat16)
    near = jnp.full(2, 99.0)
    y, mean, var = normalize_batch(x, jnp.ones(2), jnp.zeros(2), near, 0.0, "none")
    assert (y.dtype, mean.dtype, var.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    exact = np.asarray(x, np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(var, exact.var((0, 1, 2)), rtol=1e-5)


@pytest.mark.parametrize("away", [0.0, 1.0, 30.0, 300.0])
def test_one_pass_over_bfloat16_loses_less_than_its_rounding(away):
    """With r deviations between mean and `near`: r^2 / 2^24, and the sums' own rounding.

    A sum of n terms, one after the other as on a processor without AVX-512, loses about
    sqrt(n) / 2^24. Rounding the values themselves costs the deviation r / 2^9, twice as much of the
    variance.
    """
    x = jnp.asarray(away + _random(8, 10, 10, 2), jnp.bfloat16)
    mean, var = batch_statistics(x, jnp.zeros(2))
    exact = np.asarray(x, np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 1, 2)), rtol=1e-6, atol=1e-6)
    lost = (4 * max(away, 1.0) ** 2 + np.sqrt(x[..., 0].size)) / 2**24
    assert lost < 2 * max(away, 1.0) / 2**9
    np.testing.assert_allclose(var, exact.var((0, 1, 2)), rtol=lost)


def test_variance_is_never_negative():
    x = jnp.full((2, 3, 3, 1), 777.0, jnp.bfloat16)
    _, var = batch_statistics(x, jnp.zeros(1))
    assert 0 <= float(var[0]) < 1


def test_the_estimate_of_the_mean_is_the_moving_mean():
    norm = NormLayer(2, schema.BatchNorm(decay=0.0), frozen=False)
    x = jnp.asarray(1000 + _random(4, 9, 9, 2), jnp.bfloat16)
    exact = np.asarray(x, np.float64)
    for _ in range(2):  # the second time it knows where the mean is
        norm(x, "none", train=True)
    unbiased = exact.var((0, 1, 2)) * 324 / 323
    np.testing.assert_allclose(norm.var[...], unbiased, rtol=1e-5)


def test_variance_keeps_its_digits_far_from_zero():
    x = 3000 + _random(8, 10, 10, 2)
    _, var = batch_statistics(jnp.asarray(x), jnp.zeros(2))
    np.testing.assert_allclose(var, x.astype(np.float64).var((0, 1, 2)), rtol=1e-4)


@pytest.mark.parametrize("height", [1, 2, 3, 19, 20, 21, 23, 40, 46, 150])
def test_every_row_is_summed_once(height):
    x = np.arange(2 * height * 3 * 2, dtype=np.float32).reshape(2, height, 3, 2) % 17
    total = at_once(lambda x: sum_of_rows(lambda start, stop: x[:, start:stop], height), x)
    np.testing.assert_array_equal(total, x.sum((0, 1, 2)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("height", [1, 4, 5, 11, 40])
def test_several_terms_are_summed_over_the_same_rows(height, dtype):
    x = (np.arange(2 * height * 3 * 2).reshape(2, height, 3, 2) % 17).astype(dtype)
    y = np.flip(x, 1)
    terms = (lambda x, y: (x * y).astype(jnp.float32), lambda x, y: (x - y).astype(jnp.float32))
    product, difference = at_once(partial(channel_sums, terms), x, y)
    expected = np.asarray(x, np.float64), np.asarray(y, np.float64)
    np.testing.assert_array_equal(product, (expected[0] * expected[1]).sum((0, 1, 2)))
    np.testing.assert_array_equal(difference, (expected[0] - expected[1]).sum((0, 1, 2)))


def test_other_platforms_sum_plainly():
    x = _random(2, 5, 6, 3)
    with lowering(platform="gpu"):
        sums = channel_sum(jnp.square, x)
    np.testing.assert_allclose(sums, (x**2).sum((0, 1, 2)), rtol=1e-6)


def test_another_lowering_is_traced_again():
    x, ones, zeros = _random(1, 4, 4, 2), jnp.ones(2), jnp.zeros(2)

    def loss(x):
        return jnp.sum(normalize_batch(x, ones, zeros, zeros, 1e-3, "relu")[0] ** 2)

    def is_portable():
        return "platform_index" not in str(jax.make_jaxpr(lambda x: jax.grad(loss)(x))(x))

    assert not is_portable()
    with lowering(portable=True):
        assert is_portable()
    assert not is_portable()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("height", [1, 7, 46])
def test_a_bias_and_its_gradient_are_those_of_a_plain_addition(height, dtype):
    x, bias = jnp.asarray(_random(3, height, 5, 6)), jnp.asarray(_random(6, seed=1))
    # bfloat16 holds these, and no sum of them is rounded.
    above = jnp.round(4 * jnp.asarray(_random(3, height, 5, 6, seed=2)))

    def both(x, bias, above):
        results = []
        for add in (partial(add_bias, dtype=dtype), lambda x, bias: (x + bias).astype(dtype)):
            y, pull_back = jax.vjp(add, x, bias)
            results.append((y, *pull_back(above.astype(dtype))))
        return results

    for ours, plain in zip(*at_once(both, x, bias, above), strict=True):
        assert ours.dtype == plain.dtype
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(plain))
