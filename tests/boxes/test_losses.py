import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes import focal_loss, losses
from tests.boxes import golden

GOLDEN = golden.load("boxes_losses.json")
LOGITS, TARGETS = (np.float32(GOLDEN["inputs"][name]) for name in ("pred", "target"))
SLOT_WEIGHTS = np.float32(GOLDEN["inputs"]["weights"])
WEIGHTS = SLOT_WEIGHTS[..., 0]
LN2 = math.log(2)


def focal(gamma=2.0, alpha=None):
    return lambda x, z: focal_loss.sigmoid_focal_cross_entropy(x, z, gamma=gamma, alpha=alpha)


def bootstrapped(hard):
    return lambda x, z: losses.bootstrapped_sigmoid_cross_entropy(x, z, alpha=0.9, hard=hard)


@pytest.mark.parametrize(
    "name, function",
    [
        ("sigmoid", losses.sigmoid_cross_entropy),
        ("focal_anone_g2", focal()),
        ("focal_a.25_g2", focal(alpha=0.25)),
        ("focal_a.75_g2", focal(alpha=0.75)),
        ("boot_soft", bootstrapped(hard=False)),
        ("boot_hard", bootstrapped(hard=True)),
    ],
)
def test_elementwise_losses_equal_the_executed_reference(name, function):
    # The reference takes 1 - p_t in float32, which costs its focal loss the sixth digit of the
    # smallest value: 1 / (1 + e^4)^2 * ln(1 + e^-4) is 5.871569e-6, and it has 5.871589e-6.
    np.testing.assert_allclose(function(LOGITS, TARGETS) * SLOT_WEIGHTS, GOLDEN[name], rtol=4e-6)


@pytest.mark.parametrize(
    "name, function",
    [
        ("sigmoid", losses.sigmoid_loss),
        ("focal_anone_g2", focal_loss.sigmoid_focal_loss),
        ("focal_a.25_g2", lambda *a: focal_loss.sigmoid_focal_loss(*a, alpha=0.25)),
        ("boot_soft", lambda *a: losses.bootstrapped_sigmoid_loss(*a, alpha=0.9, hard=False)),
    ],
)
def test_anchor_losses_are_the_sums_over_the_slots(name, function):
    expected = np.sum(GOLDEN[name], axis=-1)
    np.testing.assert_allclose(function(LOGITS, TARGETS, WEIGHTS), expected, rtol=2e-6)
    # The reference weighs every slot, here all slots of an anchor alike.
    np.testing.assert_allclose(function(LOGITS, TARGETS, SLOT_WEIGHTS), expected, rtol=2e-6)


@pytest.mark.parametrize("name, scale", [("softmax", 1.0), ("softmax_ls2", 2.0)])
def test_softmax_equals_the_executed_reference(name, scale):
    result = losses.softmax_loss(LOGITS, TARGETS, WEIGHTS, logit_scale=scale)
    np.testing.assert_allclose(result, GOLDEN[name], rtol=1e-6)
    result = losses.softmax_loss(LOGITS, TARGETS, SLOT_WEIGHTS, logit_scale=scale)
    np.testing.assert_allclose(result, GOLDEN[name], rtol=1e-6)


def test_slots_of_one_anchor_can_weigh_differently():
    # Logits 0: every slot costs ln 2; focal with gamma 1 half of that; softmax ln 3.
    zeros, targets, weights = np.zeros((1, 3)), [[0, 1, 0]], [[0.5, 4.0, 0.0]]
    np.testing.assert_allclose(losses.sigmoid_loss(zeros, targets, weights), [4.5 * LN2])
    focal = focal_loss.sigmoid_focal_loss(zeros, targets, weights, gamma=1.0)
    np.testing.assert_allclose(focal, [2.25 * LN2], rtol=1e-6)
    # The target's slot alone has a loss.
    softmax = losses.softmax_loss(zeros, targets, weights)
    np.testing.assert_allclose(softmax, [4 * math.log(3)], rtol=1e-6)


def test_softmax_against_logits_is_softmax_against_their_softmax():
    # Targets over 2: (0, ln 3) have the softmax (1/4, 3/4); logits over 2: (0, 0) cost ln 2.
    targets = [[0.0, 2 * math.log(3)]]
    result = losses.softmax_against_logits_loss([[1.0, 1.0]], targets, [0.5], logit_scale=2.0)
    np.testing.assert_allclose(result, [0.5 * LN2], rtol=1e-6)
    # Logits over 2: (0, ln 3): -(ln .25 / 4 + 3 ln .75 / 4), what the target itself costs.
    own = -(math.log(0.25) + 3 * math.log(0.75)) / 4
    result = losses.softmax_against_logits_loss(targets, targets, [1.0], logit_scale=2.0)
    np.testing.assert_allclose(result, [own], rtol=1e-6)


def test_soft_bootstrapping_has_a_gradient_through_the_prediction():
    # d/dx of softplus(x) - x z(x), z = .9 t + .1 s(x): s - z - .1 x s (1 - s). At x = 1, t = 0:
    # s = .731059: .731059 - .073106 - .1 * .196612 = .638292. Hard: s - .1 = .631059.
    def slope(hard):
        return jax.grad(
            lambda x: losses.bootstrapped_sigmoid_cross_entropy(x, 0.0, alpha=0.9, hard=hard)
        )(1.0)

    np.testing.assert_allclose(slope(False), 0.638292, rtol=1e-5)
    np.testing.assert_allclose(slope(True), 0.631059, rtol=1e-5)


def test_sigmoid_at_extreme_logits_costs_only_the_undecided_ones():
    # Correct confident slots cost 0, a logit of 0 costs ln 2: twice, and once without weight.
    logits = [[-100.0, 100, -100], [100, 0, -100], [0, -100, 100], [0, -100, -100]]
    targets = [[0, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 0]]
    result = losses.sigmoid_loss(logits, targets, [1, 1, 1, 0])
    np.testing.assert_allclose(result, [0, LN2, LN2, 0], atol=1e-6)


def test_sigmoid_grows_linearly_when_surely_wrong():
    result = losses.sigmoid_cross_entropy([100.0, -100.0], [0, 1])
    np.testing.assert_allclose(result, [100, 100])


def test_softmax_at_extreme_logits_costs_only_the_undecided_ones():
    # Two equal winners cost ln 2: once in full and once by half (row 23).
    logits = [[-100.0, 100, -100], [0, 0, -100], [100, 100, -100], [-100, -100, 100]]
    targets = [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    result = losses.softmax_loss(logits, targets, [1, 1, 0.5, 1])
    np.testing.assert_allclose(result.sum(), 1.5 * LN2, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_losses_are_float32_for_any_input_type(dtype):
    logits, weights = jnp.ones((2, 3), dtype), jnp.ones(2, dtype)
    assert losses.sigmoid_loss(logits, logits, weights).dtype == jnp.float32
    assert focal_loss.sigmoid_focal_loss(logits, logits, weights).dtype == jnp.float32
    assert losses.softmax_loss(logits, logits, weights).dtype == jnp.float32
    assert losses.softmax_against_logits_loss(logits, logits, weights).dtype == jnp.float32
    bootstrapped = losses.bootstrapped_sigmoid_loss(logits, logits, weights, alpha=0.9, hard=True)
    assert bootstrapped.dtype == jnp.float32


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_gradients_are_finite_at_extreme_logits(gamma):
    logits = jnp.asarray([[-100.0, -30, 0, 1e-6, 30, 100]] * 2)
    targets = jnp.asarray([[0.0] * 6, [1.0] * 6])
    for function in (
        losses.sigmoid_loss,
        losses.softmax_loss,
        lambda *a: focal_loss.sigmoid_focal_loss(*a, gamma=gamma, alpha=0.25),
    ):
        value, gradient = jax.value_and_grad(lambda x, f=function: f(x, targets, [1, 1]).sum())(
            logits
        )
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


def test_a_head_of_zeros_has_a_gradient_for_the_background():
    # s(0) - 0 = .5: the slope must not vanish where the loss is written with |x| and max(x, 0).
    gradient = jax.grad(lambda x: losses.sigmoid_cross_entropy(x, 0.0))(0.0)
    assert gradient == 0.5


def test_sigmoid_gradient_is_probability_less_target():
    logits = jnp.asarray([-3.0, -0.1, 0.0, 2.0])
    gradient = jax.grad(lambda x: losses.sigmoid_cross_entropy(x, jnp.ones(4)).sum())(logits)
    np.testing.assert_allclose(gradient, jax.nn.sigmoid(logits) - 1, rtol=1e-6)
