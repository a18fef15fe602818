"""Dropout, stochastic depth (arXiv:1603.09382) and DropBlock (arXiv:1810.12890).

All take a key and raise ValueError if it is None.
"""

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.models.layers.lowering.pooling import max_pool


def fold_key(key: jax.Array | None, number: int) -> jax.Array | None:
    """Derives the key of part `number`; None stays None."""
    return None if key is None else jax.random.fold_in(key, number)


def dropout(x: jax.Array, keep: float, key: jax.Array | None) -> jax.Array:
    """Sets a share of `1 - keep` of all values to zero and scales up the rest."""
    kept = jax.random.bernoulli(_required(key), keep, x.shape)
    return jnp.where(kept, x / keep, jnp.zeros((), x.dtype)).astype(x.dtype)


def drop_connect(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Sets images of a branch `[B, H, W, C]` to 0 with probability `rate`; scales up the rest."""
    keep = 1 - rate
    kept = jax.random.bernoulli(_required(key), keep, (x.shape[0], 1, 1, 1))
    return jnp.where(kept, x / keep, jnp.zeros((), x.dtype)).astype(x.dtype)


def drop_block(x: jax.Array, config: schema.DropBlock, key: jax.Array | None) -> jax.Array:
    """Sets squares of each channel of `[B, H, W, C]` to zero; divides the rest by the share left.

    Blocks are within the map. The original compares their rows with its width: on wide maps they
    may cross the bottom edge and on high ones they never reach it. Here rows are compared with the
    height. On maps smaller than a block, where the original's rate is negative or infinite, the
    block shrinks to the shorter side.
    """
    height, width = x.shape[1:3]
    side = min(config.block_size, height, width)
    places = (height - side + 1, width - side + 1)
    # Each corner drops side^2 values, and corners are drawn at these positions only.
    rate = (1 - config.keep_probability) * height * width / side**2 / (places[0] * places[1])
    corners = jax.random.bernoulli(_required(key), rate, (x.shape[0], *places, x.shape[3]))
    # After padding by the block's side less one, the window of a pixel has all corners of blocks
    # that cover it.
    pad = (side - 1, side - 1)
    padded = jnp.pad(corners.astype(jnp.float32), ((0, 0), pad, pad, (0, 0)))
    dropped = max_pool(padded, side, 1, padding="valid") > 0
    share = jnp.maximum(1 - jnp.mean(dropped, dtype=jnp.float32), 1 / x.size)
    return jnp.where(dropped, jnp.zeros((), x.dtype), x / share.astype(x.dtype)).astype(x.dtype)


def _required(key: jax.Array | None) -> jax.Array:
    if key is None:
        raise ValueError("dropout needs a dropout_key in training")
    return key
