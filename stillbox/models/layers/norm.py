"""Batch normalisation as TF1's fused kernel does it (fact sheet 3.10)."""

import jax
import jax.numpy as jnp
from flax import nnx

from stillbox.experiment import schema


class BatchNorm(nnx.Module):
    """Normalises every channel over batch and space, in float32 whatever the input.

    In training it divides by the biased deviation of the batch but remembers the unbiased
    variance, which is what the fused kernel of TF1 does.

    Args:
        channels: C.
        config: decay, epsilon, which of scale and offset exist.
        frozen: use the moving statistics in training too, and leave them alone.
    """

    def __init__(self, channels: int, config: schema.BatchNorm, *, frozen: bool) -> None:
        if config.scale:
            self.scale = nnx.Param(jnp.ones(channels, jnp.float32))
        if config.center:
            self.bias = nnx.Param(jnp.zeros(channels, jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros(channels, jnp.float32))
        self.var = nnx.BatchStat(jnp.ones(channels, jnp.float32))
        self.config = config
        self.frozen = frozen or not config.train

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Normalises `[B, H, W, C]` of any float type; returns float32."""
        x = x.astype(jnp.float32)
        if train and not self.frozen:
            mean = jnp.mean(x, axis=(0, 1, 2))
            var = jnp.mean(jnp.square(x - mean), axis=(0, 1, 2))
            self._remember(mean, var, x.size // x.shape[-1])
        else:
            mean, var = self.mean[...], self.var[...]
        factor = jax.lax.rsqrt(var + self.config.epsilon)
        if self.config.scale:
            factor = factor * self.scale[...]
        y = (x - mean) * factor
        return y + self.bias[...] if self.config.center else y

    def _remember(self, mean: jax.Array, var: jax.Array, count: int) -> None:
        decay = self.config.decay
        # One value has no unbiased variance; TF's kernel then divides by 1 too.
        unbiased = var * (count / max(count - 1, 1))
        mean, unbiased = jax.lax.stop_gradient((mean, unbiased))
        self.mean[...] = decay * self.mean[...] + (1 - decay) * mean
        self.var[...] = decay * self.var[...] + (1 - decay) * unbiased
