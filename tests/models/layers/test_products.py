"""Products of matrices in the layouts that a CPU needs, and windows of images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.models.layers.lowering.products import product, transposed
from stillbox.models.layers.lowering.windows import added_up, patch_rows, windows_of


def _random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(-8, 8, shape), jnp.float32)


# Small integers: bfloat16 holds them, and their sums, without an error.
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_transposed_product_is_one_that_runs(dtype):
    """Without a layout XLA has no bfloat16 product whose consumer reads it by columns."""
    a, b = _random(20, 24).astype(dtype), _random(20, 16, seed=1).astype(dtype)

    @jax.jit
    def kernel_gradient(a, b):
        return product(transposed(a), b).T.reshape(4, 4, 24).astype(dtype)

    expected = (np.asarray(a, np.float32).T @ np.asarray(b, np.float32)).T.reshape(4, 4, 24)
    expected = np.asarray(jnp.asarray(expected).astype(dtype), np.float32)
    np.testing.assert_array_equal(np.asarray(kernel_gradient(a, b), np.float32), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_sum_of_a_product_is_float32(dtype):
    a, b = jnp.full((1, 4096), 1 / 16, dtype), jnp.full((4096, 1), 1 / 16, dtype)
    result = product(a, b)
    assert result.dtype == jnp.float32
    assert result[0, 0] == 16


# Kernels that a stride divides and that it does not, windows that leave pixels out.
@pytest.mark.parametrize("size", [(9, 12), (8, 7)])
@pytest.mark.parametrize("taps", [(3, 3), (1, 1), (2, 4)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_are_added_up_where_they_come_from(size, taps, stride):
    def cut(image):
        return windows_of(image, taps, stride)

    image = _random(2, *size, 3)
    windows, put_back = jax.vjp(cut, image)
    stacked = jnp.stack(windows, axis=3)
    patches = stacked.reshape(*stacked.shape[:3], *taps, -1)
    np.testing.assert_array_equal(added_up(patches, size, stride), put_back(windows)[0])
    rows = patch_rows(image[0], taps, stride)
    kernel_axes_first = patches[0].transpose(2, 3, 4, 0, 1)
    np.testing.assert_array_equal(rows, kernel_axes_first.reshape(len(rows), -1))
