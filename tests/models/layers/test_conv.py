"""Layers: kernel, bias or norm, activation, penalty."""

import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.layers import Conv2d, DepthwiseConv2d, SeparableConv2d


def _options(dtype=jnp.float32):
    return {"freeze_norm": False, "dtype": dtype, "rng": np.random.default_rng(0)}


def test_without_norm_there_is_a_bias():
    layer = Conv2d(2, 3, 1, 1, schema.ConvHyperparams(activation="relu"), **_options())
    layer.kernel[...] = jnp.ones((1, 1, 2, 3))
    layer.bias[...] = jnp.array([0.0, 1.0, -10.0])
    # 2 + 3 = 5, plus each bias, then relu.
    y = layer(jnp.array([2.0, 3.0]).reshape(1, 1, 1, 2), train=False)
    np.testing.assert_array_equal(y.ravel(), [5, 6, 0])
    assert not hasattr(layer, "norm")


def test_with_norm_there_is_no_bias():
    layer = Conv2d(2, 3, 1, 1, schema.ConvHyperparams(batch_norm=schema.BatchNorm()), **_options())
    assert not hasattr(layer, "bias")
    assert layer.norm.bias.shape == (3,)


def test_depthwise_kernel_has_one_tap_set_a_channel():
    hyperparams = schema.ConvHyperparams(batch_norm=schema.BatchNorm())
    layer = DepthwiseConv2d(5, 3, 2, hyperparams, **_options(jnp.bfloat16))
    assert layer.kernel.shape == (3, 3, 5, 1)
    y = layer(jnp.ones((1, 7, 8, 5), jnp.bfloat16), train=True)
    assert y.shape == (1, 4, 4, 5)
    assert y.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("regularizer", "expected"),
    # Kernel 1, -2: half of 1 + 4 is 2.5, 1 + 2 is 3.
    [(schema.L2(weight=0.1), 0.25), (schema.L1(weight=0.1), 0.3), (None, 0.0)],
)
def test_penalty_of_a_kernel(regularizer, expected):
    hyperparams = schema.ConvHyperparams(regularizer=regularizer)
    layer = Conv2d(2, 1, 1, 1, hyperparams, **_options())
    layer.kernel[...] = jnp.array([1.0, -2.0]).reshape(1, 1, 2, 1)
    layer.bias[...] = jnp.array([100.0])
    np.testing.assert_allclose(layer.penalty(), expected, rtol=1e-6)


def test_depthwise_kernels_are_penalized_on_demand():
    for wanted in (True, False):
        hyperparams = schema.ConvHyperparams(
            regularizer=schema.L2(weight=2.0), regularize_depthwise=wanted
        )
        layer = DepthwiseConv2d(2, 3, 1, hyperparams, **_options())
        layer.kernel[...] = jnp.ones((3, 3, 2, 1))
        # Half of eighteen ones, times 2.
        assert float(layer.penalty()) == (18.0 if wanted else 0.0)


def test_a_bias_beside_the_norm_only_on_demand():
    norm = schema.BatchNorm()
    forced = schema.ConvHyperparams(batch_norm=norm, force_bias=True, activation="none")
    layer = Conv2d(1, 1, 1, 1, forced, **_options())
    layer.bias[...] = jnp.array([3.0])
    # The moving mean is 0 and the variance 1: what comes in and the bias come out, less epsilon.
    y = layer(jnp.full((1, 1, 1, 1), 2.0) / layer.kernel[...], train=False)
    np.testing.assert_allclose(y.ravel(), 5 / np.sqrt(1.001), rtol=1e-6)


def test_a_separable_convolution_is_a_depthwise_and_a_pointwise_one():
    plain = schema.ConvHyperparams(activation="relu", regularizer=schema.L2(weight=1.0))
    layer = SeparableConv2d(2, 3, 3, 2, plain, **_options())
    depthwise = DepthwiseConv2d(2, 3, 2, schema.ConvHyperparams(activation="none"), **_options())
    pointwise = Conv2d(2, 3, 1, 1, plain, **_options())
    depthwise.kernel[...] = layer.depthwise_kernel[...]
    pointwise.kernel[...] = layer.kernel[...]
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 5, 4, 2)), jnp.float32)
    expected = pointwise(depthwise(x, train=False), train=False)
    np.testing.assert_allclose(layer(x, train=False), expected, rtol=1e-6, atol=1e-6)
    squares = np.square(layer.kernel[...]).sum() + np.square(layer.depthwise_kernel[...]).sum()
    np.testing.assert_allclose(layer.penalty(), squares / 2, rtol=1e-6)


def test_biases_and_norms_are_penalized_if_configured():
    options = {"regularizer": schema.L2(weight=2.0), "regularize_bias": True}
    layer = Conv2d(1, 2, 1, 1, schema.ConvHyperparams(**options), **_options())
    layer.kernel[...], layer.bias[...] = jnp.zeros((1, 1, 1, 2)), jnp.array([1.0, 3.0])
    # 2 / 2 * (1 + 9)
    assert float(layer.penalty()) == 10.0

    norm = schema.BatchNorm(scale=True)
    hyperparams = schema.ConvHyperparams(**options, regularize_norm=True, batch_norm=norm)
    layer = Conv2d(1, 2, 1, 1, hyperparams, **_options())
    layer.norm.scale[...], layer.norm.bias[...] = jnp.array([1.0, 2.0]), jnp.array([0.0, 3.0])
    # 2 / 2 * (1 + 4 + 9); its kernel is not its norm's.
    assert float(layer.norm.penalty()) == 14.0
    plain = schema.ConvHyperparams(**options, batch_norm=norm)
    assert float(Conv2d(1, 2, 1, 1, plain, **_options()).norm.penalty()) == 0.0
