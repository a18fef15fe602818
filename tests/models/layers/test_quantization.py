"""Simulated quantisation against TensorFlow's operation, and folding against batch norm."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.layers import Conv2d, DepthwiseConv2d, SeparableConv2d
from stillbox.models.layers.quantization import FakeQuant, fake_quant, set_training_step

GOLDEN = Path(__file__).parents[2] / "goldens" / "models_fake_quant.json"
CASES = json.loads(GOLDEN.read_text())["cases"]
LAYERS = {
    "conv": (Conv2d, (4, 6, 3, 1)),
    "depthwise": (DepthwiseConv2d, (4, 3, 2)),
    "separable": (SeparableConv2d, (4, 6, 3, 1)),
}


def random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['low']}..{c['high']} {c['bits']}")
def test_values_and_gradients_are_those_of_tensorflow(case):
    def rounded(x):
        return fake_quant(x, low, high, case["bits"], narrow=case["narrow"])

    low, high = np.float32(case["low"]), np.float32(case["high"])
    y, pull_back = jax.vjp(rounded, np.float32(case["x"]))
    np.testing.assert_allclose(y, np.float32(case["y"]), rtol=1e-6)
    below = pull_back(jnp.float32(case["above"]))[0]
    np.testing.assert_array_equal(below, np.float32(case["below"]))


def measured(rounding, x, step):
    set_training_step(rounding, jnp.int32(step))
    y = rounding(jnp.asarray(x, jnp.float32), train=True)
    return y, float(rounding.min[...]), float(rounding.max[...])


def test_the_range_of_results_is_an_unbiased_moving_average_that_holds_0():
    rounding = FakeQuant(schema.Quantization(delay=0))
    assert measured(rounding, [1.0, 3.0], 0)[1:] == pytest.approx((0.0, 3.0))
    # Weights 1 - d and d (1 - d) over their sum, 1 - d^2, at d = .999: 3 * .999 / 1.999 and
    # 5 / 1.999 make 4.0005; the minima 0 and -2 make -2 / 1.999.
    _, low, high = measured(rounding, [-2.0, 5.0], 1)
    assert low == pytest.approx(-2 / 1.999, rel=1e-5)
    assert high == pytest.approx((3 * 0.999 + 5) / 1.999, rel=1e-5)


def test_the_range_of_a_kernel_is_that_of_its_values():
    rounding = FakeQuant(schema.Quantization(delay=0), weights=True)
    measured(rounding, [-1.0, 9.0], 0)
    assert measured(rounding, [0.5, 2.0], 5)[1:] == (0.0, 2.0)


def test_before_the_delay_ranges_are_measured_and_nothing_is_rounded():
    rounding, x = FakeQuant(schema.Quantization(delay=2)), [0.1234567, 1.0]
    for step in (0, 1):
        y, *ends = measured(rounding, x, step)
        np.testing.assert_array_equal(y, np.float32(x))
        assert ends == pytest.approx([0.0, 1.0])
    assert measured(rounding, x, 2)[0][0] != np.float32(x[0])
    # Evaluation rounds from the start, as the original's graph for it.
    assert rounding(jnp.float32(x), train=False)[0] != np.float32(x[0])


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # The longer side is 3. Levels of a kernel: -127 to 127. Of results: -128 to 127, so that
        # 254 / 256 of the negative side are on the positive one.
        (True, (-3.0, 3.0)),
        (False, (-3.0, 3.0 * 254 / 256)),
    ],
)
def test_symmetric_ranges(weights, expected):
    rounding = FakeQuant(schema.Quantization(delay=0, symmetric=True), weights=weights)
    assert measured(rounding, [-3.0, 1.0], 0)[1:] == pytest.approx(expected)


def layer(kind, quantization, statistics="global"):
    cls, arguments = LAYERS[kind]
    norm = schema.BatchNorm(scale=True, statistics=statistics, group_size=2)
    conv = schema.ConvHyperparams(
        activation="relu6",
        batch_norm=norm,
        initializer=schema.TruncatedNormal(stddev=0.3),
        force_bias=kind == "conv",
    )
    options = {"dtype": jnp.float32, "freeze_norm": False, "rng": np.random.default_rng(0)}
    made = cls(*arguments, conv, **options, quantization=quantization)
    channels = made.norm.mean[...].size
    if made.bias is not None:
        made.bias[...] = jnp.linspace(-0.3, 0.4, channels)
    made.norm.scale[...] = jnp.linspace(0.5, 2, channels)
    made.norm.bias[...] = jnp.linspace(-0.5, 0.5, channels)
    made.norm.mean[...] = jnp.linspace(-0.2, 0.1, channels)
    made.norm.var[...] = jnp.linspace(0.5, 3, channels)
    return made


def gradient(made, x):
    def loss(made, x):
        return jnp.sum(jnp.sin(made(x, train=True)))

    set_training_step(made, jnp.int32(3))
    differentiate = nnx.jit(nnx.value_and_grad(loss, argnums=(0, 1)))
    value, (of_layer, of_input) = differentiate(made, x)
    return value, nnx.to_pure_dict(of_layer), of_input


@pytest.mark.parametrize(
    ("kind", "statistics"),
    [("conv", "groups"), ("depthwise", "global"), ("separable", "global")],
)
def test_without_rounding_folded_batch_norm_is_batch_norm(kind, statistics):
    x = random(4, 5, 5, 4, seed=1)
    plain, folded = layer(kind, None, statistics), layer(kind, schema.Quantization(), statistics)
    for ours, theirs in zip(
        jax.tree.leaves(gradient(folded, x)), jax.tree.leaves(gradient(plain, x)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-4)
    for name in ("mean", "var"):
        ours, theirs = getattr(folded.norm, name)[...], getattr(plain.norm, name)[...]
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_kernel_is_rounded_with_the_factor_of_the_moving_variance():
    made = layer("conv", schema.Quantization(delay=0))
    factor = made.norm.scale[...] / jnp.sqrt(made.norm.var[...] + 0.001)
    folded = made.kernel[...] * factor
    made(random(2, 5, 5, 4), train=True)
    assert float(made.roundings["weights_quant"].max[...]) == pytest.approx(float(folded.max()))
    assert float(made.roundings["weights_quant"].min[...]) == pytest.approx(float(folded.min()))


@pytest.mark.parametrize("kind", LAYERS)
def test_results_lie_on_the_levels_of_their_range(kind):
    made, x = layer(kind, schema.Quantization(delay=0)), random(2, 5, 5, 4)
    made(x, train=True)
    y = np.asarray(made(x, train=False))
    high = float(made.roundings["act_quant"].max[...])
    levels = y / (high / 255)
    np.testing.assert_allclose(levels, np.rint(levels), atol=1e-3)
    assert 5 < len(np.unique(y)) <= 256


def test_a_kernel_of_several_maps_has_ranges_for_each():
    options = {"dtype": jnp.float32, "freeze_norm": False, "rng": np.random.default_rng(0)}
    conv = schema.ConvHyperparams(activation="none")
    made = Conv2d(
        2, 3, 1, 1, conv, **options, num_uses=2, quantization=schema.Quantization(delay=0)
    )
    set_training_step(made, jnp.int32(0))
    for use, size in enumerate((1.0, 10.0)):
        made(jnp.full((1, 2, 2, 2), size), train=True, use=use)
    results = [made.roundings[name] for name in ("act_quant_0", "act_quant_1")]
    ends = [np.abs([r.min[...], r.max[...]]).max() for r in results]
    assert ends[1] == pytest.approx(10 * ends[0], rel=0.02)
