"""What is left out at random in training, each from an explicit key.

Sources: stochastic depth arXiv:1603.09382, DropBlock arXiv:1810.12890, TPU detection fact sheet 3.
"""

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.models.layers.lowering import max_pool


def fold_key(key: jax.Array | None, number: int) -> jax.Array | None:
    """Derives the key of part `number` from that of the whole; None stays None."""
    return None if key is None else jax.random.fold_in(key, number)


def drop_connect(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Sets all of an image's values to zero with probability `rate`; scales up those of the others.

    Args:
        x: `[B, H, W, C]`, a branch beside a shortcut.
        rate: below 1.
        key: what to draw from.

    Raises:
        ValueError: there is no key to draw from.
    """
    keep = 1 - rate
    kept = jax.random.bernoulli(_given(key), keep, (x.shape[0], 1, 1, 1))
    return jnp.where(kept, x / keep, jnp.zeros((), x.dtype)).astype(x.dtype)


def drop_block(x: jax.Array, config: schema.DropBlock, key: jax.Array | None) -> jax.Array:
    """Sets squares of each channel to zero and divides the others by the share that is left.

    Blocks lie within the map. The original tests their rows against its width, which on wide maps
    lets them hang over the bottom edge and on high ones keeps them off it; here rows are tested
    against the height. On maps smaller than a block, where the original's rate is negative or
    infinite, the block shrinks to the shorter side.

    Args:
        x: `[B, H, W, C]`.
        config: share that is kept and side of a square.
        key: what to draw from.

    Raises:
        ValueError: there is no key to draw from.
    """
    height, width = x.shape[1:3]
    side = min(config.block_size, height, width)
    places = (height - side + 1, width - side + 1)
    # Each corner drops side^2 values, and corners are drawn for these places only.
    rate = (1 - config.keep_probability) * height * width / side**2 / (places[0] * places[1])
    corners = jax.random.bernoulli(_given(key), rate, (x.shape[0], *places, x.shape[3]))
    # Padded by a block less one, every window of a block's size sees the corners that cover it.
    reach = (side - 1, side - 1)
    padded = jnp.pad(corners.astype(jnp.float32), ((0, 0), reach, reach, (0, 0)))
    dropped = max_pool(padded, side, 1, padding="valid") > 0
    share = jnp.maximum(1 - jnp.mean(dropped, dtype=jnp.float32), 1 / x.size)
    return jnp.where(dropped, jnp.zeros((), x.dtype), x / share.astype(x.dtype)).astype(x.dtype)


def _given(key: jax.Array | None) -> jax.Array:
    if key is None:
        raise ValueError("a part that drops something needs a dropout_key in training")
    return key
