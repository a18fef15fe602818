"""Regularisation penalties; the family in `schema` says how they are called."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements
from stillbox.models.layers.lowering.reductions import square_sum


def penalty_of(regularizer: schema.Regularizer | None, arrays: Sequence[jax.Array]) -> jax.Array:
    """Returns the penalty of float32 arrays of any shape, a float32 scalar."""
    total = jnp.zeros((), jnp.float32)
    if regularizer is None:
        return total
    penalty = implementation_of(regularizer)
    for array in arrays:
        total = total + penalty(regularizer, array)
    return total


def norm_regularizer(hyperparams: schema.ConvHyperparams) -> schema.Regularizer | None:
    """Returns the regulariser of scale and offset of batch norms, if any."""
    return hyperparams.regularizer if hyperparams.regularize_norm else None


@implements(schema.L2)
def _l2(regularizer: schema.L2, array: jax.Array) -> jax.Array:
    return square_sum(array) / 2 * regularizer.weight


@implements(schema.L1)
def _l1(regularizer: schema.L1, array: jax.Array) -> jax.Array:
    return jnp.sum(jnp.abs(array)) * regularizer.weight
