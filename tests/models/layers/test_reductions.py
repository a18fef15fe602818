"""Sums of squares in blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.models.layers.lowering.reductions import norm_of, square_sum


# Few elements, many in equal blocks, many with a rest.
@pytest.mark.parametrize("shape", [(), (5, 3), (3, 3, 128, 256), (7, 100_003)])
def test_squares_are_summed_with_their_gradient(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    total, gradient = jax.jit(jax.value_and_grad(square_sum))(x)
    np.testing.assert_allclose(total, np.square(x, dtype=np.float64).sum(), rtol=5e-7)
    np.testing.assert_array_equal(gradient, 2 * x)


def test_the_norm_is_that_of_all_elements():
    arrays = [jnp.full((300, 300), 2.0), jnp.asarray(3.0), jnp.zeros(4)]
    assert norm_of(arrays) == pytest.approx(np.sqrt(4 * 90_000 + 9), rel=1e-6)
    assert norm_of([]) == 0
    assert jnp.isnan(norm_of([jnp.full((300, 300), jnp.nan)]))
