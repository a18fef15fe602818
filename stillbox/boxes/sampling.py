"""Samples of fixed size, drawn at random but balanced (arXiv:1506.01497, section 3.1.3).

As `object_detection/core/balanced_positive_negative_sampler.py`.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from stillbox.boxes.top_k_mask import top_k_mask


def balanced_sample(
    priorities: ArrayLike,
    candidates: ArrayLike,
    positives: ArrayLike,
    *,
    size: int,
    positive_fraction: float,
) -> Array:
    """Marks a random sample of the candidates, `[..., N]` bool.

    At most `int(positive_fraction * size)` positive candidates are drawn, then negative ones until
    there are `size`. Fewer candidates give fewer samples. Of either kind those of the highest
    priority are drawn, of equal ones the first.

    This is the original's dynamic form. Its static form draws the same rows if there are `size`
    candidates and enough negative ones among them. Otherwise it fills the sample: the first rows
    that are no candidates become candidates until there are `size`; in place of negative ones that
    lack it takes the positive ones of the lowest priority, or, as long as there are rows that are
    no candidates, the row of the lowest priority for each of them.

    Args:
        priorities: `[..., N]`, independent and uniform, such as `jax.random.uniform` draws them.
        candidates: `[..., N]` bool, what may be drawn.
        positives: `[..., N]` bool; only those of candidates matter.
        size: most samples.
        positive_fraction: largest share of positive ones in `size`, in 0..1.
    """
    candidates, positives = jnp.asarray(candidates, bool), jnp.asarray(positives, bool)
    most_positives = jnp.asarray(int(positive_fraction * size), jnp.int32)
    drawn = _highest(priorities, candidates & positives, most_positives)
    rest = size - jnp.sum(drawn, axis=-1, dtype=jnp.int32)
    return drawn | _highest(priorities, candidates & ~positives, rest)


def _highest(priorities: ArrayLike, among: Array, count: Array) -> Array:
    """Marks the `count` `[...]` highest priorities of `among` `[..., N]`, or all if fewer."""
    keys = jnp.where(among, jnp.asarray(priorities, jnp.float32), -jnp.inf)
    return top_k_mask(keys, jnp.broadcast_to(count, among.shape[:-1])) & among


def select_rows(mask: ArrayLike, size: int) -> tuple[Array, Array]:
    """Returns the indices of the marked rows, rising, and which of them are meant.

    Args:
        mask: `[..., N]` bool; rows beyond the first `size` marked ones are left out.
        size: the number of indices, at most N.

    Returns:
        indices: `[..., size]` int32, padded with 0.
        valid: `[..., size]` bool, False for padding.
    """
    # Comparisons in place of `top_k`, for which XLA would gather the rows of all devices.
    marked = jnp.cumsum(jnp.asarray(mask, jnp.int32), axis=-1)
    numbers = jnp.arange(size, dtype=jnp.int32)
    valid = numbers < marked[..., -1:]
    indices = jnp.sum(marked[..., None, :] <= numbers[:, None], axis=-1, dtype=jnp.int32)
    return jnp.where(valid, indices, 0), valid
