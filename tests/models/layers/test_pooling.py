"""Max pooling against XLA's window reduction, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.models.layers.lowering import max_pool


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("sides", [(8, 8), (7, 5), (1, 2)])
def test_values_and_gradients_are_those_of_a_window_reduction(sides, size, stride):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, *sides, 3)), jnp.float32)

    def plain(x):
        window, strides = (1, size, size, 1), (1, stride, stride, 1)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "SAME")

    def total(function):
        return lambda x: jnp.sum(jnp.square(function(x)))

    def ours(x):
        return max_pool(x, size, stride)

    np.testing.assert_array_equal(ours(x), plain(x))
    np.testing.assert_allclose(jax.grad(total(ours))(x), jax.grad(total(plain))(x), rtol=1e-6)


@pytest.mark.parametrize("sides", [(8, 8), (7, 5), (150, 3)])
def test_symmetric_padding_is_that_of_pytorch(sides):
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, *sides, 3)), jnp.float32)
    # max_pool2d(kernel_size=3, stride=2, padding=1): (side + 2 - 3) // 2 + 1 windows.
    window, strides, pads = (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    expected = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, pads)
    ours = max_pool(x, 3, 2, padding="symmetric")
    assert ours.shape[1:3] == tuple((side - 1) // 2 + 1 for side in sides)
    np.testing.assert_array_equal(ours, expected)
