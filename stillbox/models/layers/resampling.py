"""Upsampling of feature maps."""

import jax
import jax.numpy as jnp


def upsample(x: jax.Array, factor: int) -> jax.Array:
    """Repeats pixels: `[B, H, W, C]` to `[B, factor * H, factor * W, C]`, nearest neighbour."""
    batch, height, width, channels = x.shape
    shape = (batch, height, factor, width, factor, channels)
    repeated = jnp.broadcast_to(x[:, :, None, :, None], shape)
    return repeated.reshape(batch, factor * height, factor * width, channels)
