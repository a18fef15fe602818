"""Products of matrices with float32 sums, in the layouts in which XLA's CPU backend is fast.

XLA folds a transposition into a product where it can. A CPU's bfloat16 instructions need rows that
lie in memory one after the other, so that a folded transposition costs them: the kernel gradient of
a 1x1 convolution takes two to four times as long. Float32 is as fast either way.
"""

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from stillbox.models.layers.lowering.windows import added_up

_BY_ROWS = Layout(major_to_minor=(0, 1))


def flat(x: jax.Array) -> jax.Array:
    """Returns `[..., C]` as a matrix: a product is only fast on a CPU as one of two matrices."""
    return x.reshape(-1, x.shape[-1])


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiplies `[M, K]` by `[K, N]` of the same type to `[M, N]`, float32.

    The result lies in memory row by row. XLA would lay it out by its consumers, and has no product
    of bfloat16 with float32 sums whose result lies by columns.
    """
    return _by_rows(jnp.matmul(a, b, preferred_element_type=jnp.float32))


def transposed(a: jax.Array) -> jax.Array:
    """Transposes a matrix in memory."""
    return _by_rows(a.T)


def input_gradient(
    gradient: jax.Array, kernel: jax.Array, size: tuple[int, ...], stride: int
) -> jax.Array:
    """Returns the gradient of a convolution's padded input as a product whose rows are added up.

    Args:
        gradient: of the output, `[B, h, w, D]`.
        kernel: `[kh, kw, C, D]`.
        size: rows and columns of the padded input.
        stride: of the kernel.

    Returns:
        `[B, H, W, C]` of the gradient's type.
    """
    # They stay float32: sums of bfloat16 take three times as long.
    patches = product(flat(gradient), transposed(flat(kernel)))
    patches = patches.reshape(*gradient.shape[:3], *kernel.shape[:3])
    return added_up(patches, size, stride).astype(gradient.dtype)


def _by_rows(a: jax.Array) -> jax.Array:
    laid_out: jax.Array = with_layout_constraint(a, _BY_ROWS)
    return laid_out
