"""Float32 arithmetic that rounds after every operation, as the originals' does.

Compilers merge operations into ones that round once or differently. Here that decides whether the
last row of a crop is inside of its map. Exact on CPUs; a GPU's or TPU's own division may differ.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

# Beyond what coordinates reach, and its double fits into int32.
_FAR = 2.0**29


def quotient(dividend: ArrayLike, divisor: ArrayLike) -> Array:
    """Divides; where the divisor is a constant, XLA would multiply by its rounded reciprocal."""
    dividend = jnp.asarray(dividend, jnp.float32)
    # No constant any more: it depends on the dividend.
    return dividend / jnp.where(jnp.isnan(dividend), 1, jnp.asarray(divisor, jnp.float32))


def scaled_down(values: ArrayLike, divisor: ArrayLike) -> Array:
    """Multiplies by the rounded reciprocal, as the original brings boxes into units of an image.

    A division would differ in the last place.
    """
    return product(values, 1 / jnp.asarray(divisor, jnp.float32))


def product(left: ArrayLike, right: ArrayLike) -> Array:
    """Multiplies and limits the product to +-2^29; it can be added to without a merger.

    LLVM would merge product and sum also through `optimization_barrier` and `reduce_precision`,
    which XLA removes before.
    """
    return jnp.clip(jnp.asarray(left, jnp.float32) * right, -_FAR, _FAR)
