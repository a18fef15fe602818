"""Batch normalisation as in TF1's fused kernel (`tf.nn.fused_batch_norm`)."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.layers.activations import ACTIVATIONS
from stillbox.models.layers.lowering.normalization import normalize_batch, normalize_groups
from stillbox.models.layers.penalties import penalty_of


class NormLayer(nnx.Module):
    """Normalises every channel over batch and space, in float32 for any input type, and activates.

    In training the biased variance of the batch normalises, and the unbiased one updates the moving
    statistics, as in TF1's fused kernel. If groups of images are normalised separately, the moving
    statistics follow the mean over the groups.

    Args:
        channels: C.
        config: decay, epsilon, which of scale and offset exist, whose statistics. `per_replica` is
            treated as `global`: `experiment/replicas.py` replaces it by `groups` if a batch has
            several replicas.
        frozen: use the moving statistics in training too, without updating them.
        regularizer: penalty on scale and offset.
    """

    def __init__(
        self,
        channels: int,
        config: schema.BatchNorm,
        *,
        frozen: bool,
        regularizer: schema.Regularizer | None = None,
    ) -> None:
        if config.scale:
            self.scale = nnx.Param(jnp.ones(channels, jnp.float32))
        if config.center:
            self.bias = nnx.Param(jnp.zeros(channels, jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros(channels, jnp.float32))
        self.var = nnx.BatchStat(jnp.ones(channels, jnp.float32))
        self.config = config
        self.frozen = frozen or not config.train
        self.regularizer = regularizer

    def penalty(self) -> jax.Array:
        """Its regularisation loss, a float32 scalar."""
        trainable = [getattr(self, name)[...] for name in ("scale", "bias") if hasattr(self, name)]
        return penalty_of(self.regularizer, trainable)

    def __call__(self, x: jax.Array, activation: str, *, train: bool) -> jax.Array:
        """Normalises and activates `[B, H, W, C]` of any float type; returns the same type."""
        scale, bias = self.affine(x.shape[-1])
        if train and not self.frozen:
            groups = self.config.statistics == "groups"
            images = self.config.group_size if groups else x.shape[0]
            arguments = x, scale, bias, self.mean[...], self.config.epsilon, activation
            if images == x.shape[0]:
                y, mean, var = normalize_batch(*arguments)
            else:
                y, means, variances = normalize_groups(*arguments, images)
                mean, var = jnp.mean(means, axis=0), jnp.mean(variances, axis=0)
            self._update_statistics(mean, var, images * math.prod(x.shape[1:3]))
            return y
        factor = jax.lax.rsqrt(self.var[...] + self.config.epsilon) * scale
        y = (x.astype(jnp.float32) - self.mean[...]) * factor + bias
        return ACTIVATIONS[activation](y).astype(x.dtype)

    def affine(self, channels: int) -> tuple[jax.Array, jax.Array]:
        """Returns factor and offset, `[channels]` float32."""
        scale = self.scale[...] if self.config.scale else jnp.ones(channels, jnp.float32)
        bias = self.bias[...] if self.config.center else jnp.zeros(channels, jnp.float32)
        return scale, bias

    def observe(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Updates the moving statistics by those of a batch `[B, H, W, C]`, and returns the latter.

        Returns:
            Mean and biased variance, float32, `[1, 1, 1, C]`; `[B, 1, 1, C]` if groups of images
            are normalised separately. Gradients flow through both.
        """
        batch, *size, channels = x.shape
        images = self.config.group_size if self.config.statistics == "groups" else batch
        grouped = x.astype(jnp.float32).reshape(-1, images, *size, channels)
        means = jnp.mean(grouped, (1, 2, 3), keepdims=True)
        variances = jnp.mean(jnp.square(grouped - means), (1, 2, 3), keepdims=True)
        moments = [moment.reshape(-1, channels) for moment in (means, variances)]
        mean, var = (jnp.mean(moment, axis=0) for moment in moments)
        self._update_statistics(mean, var, images * math.prod(size))
        if images < batch:
            moments = [jnp.repeat(moment, images, axis=0) for moment in moments]
        return moments[0][:, None, None], moments[1][:, None, None]

    def _update_statistics(self, mean: jax.Array, var: jax.Array, count: int) -> None:
        decay = self.config.decay
        # A single value has no unbiased variance; TF's kernel divides by 1 then.
        unbiased = var * (count / max(count - 1, 1))
        # Not by `[...] =`, which is traced as a slow scatter under a mesh.
        self.mean.set_value(decay * self.mean[...] + (1 - decay) * mean)
        self.var.set_value(decay * self.var[...] + (1 - decay) * unbiased)
