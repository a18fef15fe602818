import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes import focal_loss

LN2 = math.log(2.0)


@pytest.mark.parametrize("alpha, total", [(1.0, 8 * LN2), (0.75, 10 * LN2), (None, 24 * LN2)])
def test_focal_without_focus_equals_the_published_test(alpha, total):
    # 8 anchors of 3 slots, one of them positive: 8 alpha + 16 (1 - alpha) times ln 2 (row 24).
    targets = np.eye(3)[np.arange(8) % 3].reshape(2, 4, 3)
    result = focal_loss.sigmoid_focal_loss(
        np.zeros((2, 4, 3)), targets, np.ones((2, 4)), gamma=0.0, alpha=alpha
    )
    np.testing.assert_allclose(result.sum(), total, rtol=1e-6)


def test_focal_keeps_its_digits_for_a_confident_model():
    # At logit 15 and target 1: 1 - p = s(-15) = 3.059e-7, of which 1 - s(15) in float32 keeps one
    # digit. The loss is (1 - p)^2 * -ln p, about (1 - p)^3.
    doubt = 1 / (1 + math.exp(15))
    expected = -(doubt**2) * math.log1p(-doubt)
    result = focal_loss.sigmoid_focal_cross_entropy(15.0, 1.0, gamma=2.0, alpha=None)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_a_head_of_zeros_has_a_gradient_for_the_background():
    # Gamma 2: d/dx of p^2 * -ln(1 - p) at p = .5 is 2 p p (1 - p) ln 2 + p^3.
    gradient = jax.grad(
        lambda x: focal_loss.sigmoid_focal_cross_entropy(x, 0.0, gamma=2.0, alpha=None)
    )(0.0)
    np.testing.assert_allclose(gradient, 0.25 * LN2 + 0.125, rtol=1e-6)


def loss_in_float64(x, t, gamma, alpha):
    s = 1 / (1 + np.exp(-x))
    entropy = -t * np.log(s) - (1 - t) * np.log(1 - s)
    weight = 1.0 if alpha is None else t * alpha + (1 - t) * (1 - alpha)
    return weight * (t * (1 - s) + (1 - t) * s) ** gamma * entropy


@pytest.mark.parametrize("alpha", [None, 0.25])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 1.5, 2.0])
def test_the_gradient_is_the_slope_of_the_loss(gamma, alpha):
    # By differences of the formula in float64, which knows nothing of how the loss is written.
    x = np.linspace(-8, 8, 33)[:, None]
    t = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    step = 1e-5
    upper, lower = (loss_in_float64(x + sign * step, t, gamma, alpha) for sign in (1, -1))
    gradient = jax.grad(
        lambda logits: focal_loss.sigmoid_focal_cross_entropy(
            logits, t, gamma=gamma, alpha=alpha
        ).sum(),
    )(jnp.broadcast_to(jnp.asarray(x), (33, 5)))
    np.testing.assert_allclose(gradient, (upper - lower) / (2 * step), rtol=2e-5, atol=1e-7)
