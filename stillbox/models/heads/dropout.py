"""Dropout from an explicit key."""

import jax
import jax.numpy as jnp


def dropout(x: jax.Array, keep: float, key: jax.Array | None) -> jax.Array:
    """Sets a share of `1 - keep` to zero and scales the rest up.

    Args:
        x: of any shape.
        keep: share that stays.
        key: what to draw from.

    Raises:
        ValueError: there is no key to draw from.
    """
    if key is None:
        raise ValueError("a head with dropout needs a dropout_key in training")
    kept = jax.random.bernoulli(key, keep, x.shape)
    return jnp.where(kept, x / keep, jnp.zeros((), x.dtype)).astype(x.dtype)
