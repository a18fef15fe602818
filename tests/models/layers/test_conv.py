"""Layers and what they are made of: fresh kernels, penalties, activations, sums of squares."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.lowering import lowering
from stillbox.models.layers import Conv2d, DepthwiseConv2d, SeparableConv2d
from stillbox.models.layers.hyperparams import ACTIVATIONS, draw_kernel, filled
from stillbox.models.layers.lowering.primitives import norm_of, square_sum
from tests.helpers import count_compilations


def _options(dtype=jnp.float32):
    return {"freeze_norm": False, "dtype": dtype, "rng": np.random.default_rng(0)}


def test_without_norm_there_is_a_bias():
    layer = Conv2d(2, 3, 1, 1, schema.ConvHyperparams(activation="relu"), **_options())
    layer.kernel[...] = jnp.ones((1, 1, 2, 3))
    layer.bias[...] = jnp.array([0.0, 1.0, -10.0])
    # 2 + 3 = 5, plus each bias, then relu.
    y = layer(jnp.array([2.0, 3.0]).reshape(1, 1, 1, 2), train=False)
    np.testing.assert_array_equal(y.ravel(), [5, 6, 0])
    assert layer.norm is None


def test_with_norm_there_is_no_bias():
    layer = Conv2d(2, 3, 1, 1, schema.ConvHyperparams(batch_norm=schema.BatchNorm()), **_options())
    assert layer.bias is None
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


# Half of eighteen ones, times 2.
@pytest.mark.parametrize(("wanted", "expected"), [(True, 18.0), (False, 0.0)])
def test_depthwise_kernels_are_penalized_on_demand(wanted, expected):
    regularizer = schema.L2(weight=2.0)
    hyperparams = schema.ConvHyperparams(regularizer=regularizer, regularize_depthwise=wanted)
    layer = DepthwiseConv2d(2, 3, 1, hyperparams, **_options())
    layer.kernel[...] = jnp.ones((3, 3, 2, 1))
    assert float(layer.penalty()) == expected


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


def test_both_kernels_of_a_separable_convolution_have_its_scope():
    layer = SeparableConv2d(2, 3, 3, 1, schema.ConvHyperparams(), **_options())
    layer.scope = "tower/layer_0"
    with lowering(portable=True):
        lowered = jax.jit(lambda x: layer(x, train=False)).lower(jnp.ones((1, 4, 4, 2)))
    program = lowered.as_text(debug_info=True)
    names = re.findall(r'"(jit[^"]*conv_general_dilated[^"]*)"', program)
    assert len(names) == 2 and all("/tower/layer_0/" in name for name in names)


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


_SHAPE = (3, 3, 40, 50)  # fan in 360, fan out 450
# A standard normal cut at two deviations has a deviation of .87963.
_CUT = 0.87963


@pytest.mark.parametrize(
    ("initializer", "mean", "deviation", "most"),
    [
        (schema.TruncatedNormal(mean=1.0, stddev=0.5), 1.0, 0.5 * _CUT, 1.0),
        (schema.RandomNormal(mean=-1.0, stddev=0.5), -1.0, 0.5, 9.0),
        # sqrt(1.3 * 2 / 360) before the cut.
        (schema.VarianceScaling(), 0.0, math.sqrt(2.6 / 360) * _CUT, 2 * math.sqrt(2.6 / 360)),
        (schema.VarianceScaling(mode="fan_out"), 0.0, math.sqrt(2.6 / 450) * _CUT, 1.0),
        # The deviation is exact after the cut, at two of those before it.
        (
            schema.VarianceScaling(exact_cut=True),
            0.0,
            math.sqrt(2 / 360),
            2 * math.sqrt(2 / 360) / _CUT,
        ),
        # Uniform in +-sqrt(3 / 405) has variance 1 / 405.
        (
            schema.VarianceScaling(factor=1.0, uniform=True, mode="fan_avg"),
            0.0,
            math.sqrt(1 / 405),
            math.sqrt(3 / 405),
        ),
    ],
)
def test_kernel_has_the_moments_of_its_distribution(initializer, mean, deviation, most):
    kernel = draw_kernel(initializer, _SHAPE, np.random.default_rng(0))
    assert kernel.dtype == np.float32
    # 18,000 values: the mean is known to .75 % of the deviation, the deviation to .5 %.
    assert abs(kernel.mean() - mean) < 0.03 * deviation
    assert abs(kernel.std() - deviation) < 0.02 * deviation
    assert np.abs(kernel - mean).max() <= most * (1 + 1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [-1, 0, 3, 7]),
        ("relu", [0, 0, 3, 7]),
        ("relu6", [0, 0, 3, 6]),
        # x / (1 + e^-x): -1 / 3.71828, 0, 3 / 1.0497871, 7 / 1.0009119
        ("swish", [-0.2689414, 0, 2.8577224, 6.9936226]),
        # x * relu6(x + 3) / 6: -1 * 2 / 6, 0, 3 * 6 / 6, 7 * 6 / 6
        ("hard_swish", [-1 / 3, 0, 3, 7]),
    ],
)
def test_activation_values(name, expected):
    y = ACTIVATIONS[name](jnp.array([-1.0, 0.0, 3.0, 7.0]))
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_relu6_passes_the_gradient_strictly_between_its_ends():
    gradient = jax.vmap(jax.grad(ACTIVATIONS["relu6"]))(jnp.array([-1.0, 0.0, 3.0, 6.0, 7.0]))
    assert gradient.tolist() == [0, 0, 1, 0, 0]


# Few elements, many in equal blocks, many with a rest.
@pytest.mark.parametrize("shape", [(), (5, 3), (3, 3, 128, 256), (7, 100_003)])
def test_squares_are_summed_with_their_gradient(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    total, gradient = jax.jit(jax.value_and_grad(square_sum))(x)
    np.testing.assert_allclose(total, np.square(x, dtype=np.float64).sum(), rtol=5e-7)
    np.testing.assert_array_equal(gradient, 2 * x)


def test_an_array_of_one_value_compiles_no_program():
    seen, shape = count_compilations(), (7, 1_013)  # of no other test
    np.testing.assert_array_equal(filled(shape, 2.5), np.full(shape, 2.5, np.float32))
    assert not seen
    jnp.full(shape, 2.5)
    assert len(seen) == 1


def test_the_norm_is_that_of_all_elements():
    arrays = [jnp.full((300, 300), 2.0), jnp.asarray(3.0), jnp.zeros(4)]
    assert norm_of(arrays) == pytest.approx(np.sqrt(4 * 90_000 + 9), rel=1e-6)
    assert norm_of([]) == 0
    assert jnp.isnan(norm_of([jnp.full((300, 300), jnp.nan)]))
