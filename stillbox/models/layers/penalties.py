"""What a regulariser adds to the loss (fact sheet 3.6)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from stillbox.experiment import schema


def penalty_of(regularizer: schema.Regularizer | None, arrays: Sequence[jax.Array]) -> jax.Array:
    """Returns the penalty of float32 arrays of any shape, a float32 scalar."""
    total = jnp.zeros((), jnp.float32)
    if regularizer is None:
        return total
    penalize = _PENALTIES[type(regularizer)]
    for array in arrays:
        total = total + penalize(array) * regularizer.weight
    return total


def norm_regularizer(hyperparams: schema.ConvHyperparams) -> schema.Regularizer | None:
    """Returns what penalises factor and offset of the batch norms; None: nothing does."""
    return hyperparams.regularizer if hyperparams.regularize_norm else None


def _half_sum_of_squares(array: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(array)) / 2


def _sum_of_magnitudes(array: jax.Array) -> jax.Array:
    return jnp.sum(jnp.abs(array))


_PENALTIES: dict[type, Callable[[jax.Array], jax.Array]] = {
    schema.L2: _half_sum_of_squares,
    schema.L1: _sum_of_magnitudes,
}
