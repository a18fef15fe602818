"""Mask of the k greatest values, for a k that is computed in the program."""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

_BITS = 32


def top_k_mask(values: ArrayLike, k: ArrayLike) -> Array:
    """Marks the k greatest of `[..., A]` float32, as `[..., A]` bool; of equal ones the first.

    `k` is `[...]` int, from 0; more than A marks all. `lax.top_k` needs a static k, and sorting is
    slow everywhere. The bits of floating point numbers are ordered like the numbers, so that
    bisection finds the k-th greatest: one bit of it with each of 32 counts.
    """
    keys = _ordered_keys(jnp.asarray(values, jnp.float32))
    k = jnp.asarray(k, jnp.int32)[..., None]

    def count(marked: Array) -> Array:
        return jnp.sum(marked, axis=-1, keepdims=True, dtype=jnp.int32)

    def add_bit(index: Array, threshold: Array) -> Array:
        raised = threshold | (jnp.uint32(1) << (_BITS - 1 - index).astype(jnp.uint32))
        return jnp.where(count(keys >= raised) >= k, raised, threshold)

    start = jnp.zeros((*keys.shape[:-1], 1), jnp.uint32)
    threshold = lax.fori_loop(0, _BITS, add_bit, start)
    above, equal = keys > threshold, keys == threshold
    return above | (equal & (jnp.cumsum(equal, axis=-1, dtype=jnp.int32) <= k - count(above)))


def _ordered_keys(values: Array) -> Array:
    """Maps float32 to uint32 in the same order; -0 and 0 become equal."""
    bits = lax.bitcast_convert_type(jnp.where(values == 0.0, 0.0, values), jnp.int32)
    # The bits of negative numbers are in reverse order.
    ordered = jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)
    return lax.bitcast_convert_type(ordered, jnp.uint32) ^ jnp.uint32(0x80000000)
