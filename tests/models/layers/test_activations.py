"""Activations by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.models.layers.activations import ACTIVATIONS


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
