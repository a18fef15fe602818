"""Batch normalisation as in TF1's fused kernel (`tf.nn.fused_batch_norm`), and group normalisation.

Normalisation and activation are one operation with a custom derivative. Autodiff would save every
intermediate array and reduce over them one after the other. Here only the input is kept. The
backward pass reads it and the gradient three times, or twice in float32 on a CPU.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.layers.hyperparams import ACTIVATIONS, filled, norm_regularizer, penalty_of
from stillbox.models.layers.lowering.primitives import (
    as_float32,
    channel_sum,
    channel_sums,
    jit_per_lowering,
)

Saved = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def batch_statistics(x: jax.Array, near: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns mean and biased variance of each channel of `[B, H, W, C]`, float32, `[C]`.

    float32 takes two passes. Shorter types take one, over the differences from `near` and their
    squares: with a mean r deviations away from `near` the variance loses about r^2 / 2^24, while
    bfloat16 has already rounded each value by r / 2^9 of a deviation.

    `near` is an estimate of the mean, `[C]` float32. Only the rounding error depends on it.
    """
    count = float(x.size // x.shape[-1])  # a batch may have more values than an int32
    if x.dtype == jnp.float32:
        mean = channel_sum(as_float32, x) / count
        return mean, channel_sum(partial(_squared_distance, mean), x) / count
    offset = channel_sum(partial(_distance, near), x) / count
    squares = channel_sum(partial(_squared_distance, near), x) / count
    return near + offset, jnp.maximum(squares - jnp.square(offset), 0.0)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def normalize_batch(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    near: jax.Array,
    epsilon: float,
    activation: str,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalises by the batch's own statistics, scales, shifts, activates.

    Args:
        x: `[B, H, W, C]`.
        scale: `[C]`, float32.
        bias: `[C]`, float32.
        near: `[C]`, float32, an estimate of the mean for `batch_statistics`.
        epsilon: added to the variance.
        activation: applied last.

    Returns:
        The result in x's type, and mean and biased variance `[C]`, through which no gradient flows.
    """
    return _forward(x, scale, bias, near, epsilon, activation)[0]


# A CPU's form has a hundred equations.
@partial(jit_per_lowering, static_argnums=(4, 5))
def _forward(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    near: jax.Array,
    epsilon: float,
    activation: str,
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], Saved]:
    mean, var = batch_statistics(x, near)
    inverse = jax.lax.rsqrt(var + epsilon)
    y = ACTIVATIONS[activation](_affine(x, mean, inverse * scale, bias)).astype(x.dtype)
    return (y, mean, var), (x, scale, bias, mean, inverse)


@partial(jit_per_lowering, static_argnums=(0, 1))
def _backward(
    epsilon: float,
    activation: str,
    saved: Saved,
    gradients: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    x, scale, _, mean, inverse = saved
    count = float(x.size // x.shape[-1])
    factor = inverse * scale
    through, bias_gradient, scale_gradient = _pull_back(saved, activation, x, gradients[0])
    # Factors of channels are combined first: the large arrays are read for two products and two
    # sums only.
    slope = -factor * inverse * scale_gradient / count
    offset = -factor * bias_gradient / count - slope * mean
    x_gradient = through * factor + (x.astype(jnp.float32) * slope + offset)
    return x_gradient.astype(x.dtype), scale_gradient, bias_gradient, jnp.zeros_like(mean)


normalize_batch.defvjp(_forward, _backward)


def _pull_back(
    saved: Saved, activation: str, x: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the gradients before the activation `[B, H, W, C]`, of the offset and of the factor.

    `x` and `gradient` are `[B, H, W, C]`.
    """
    _, scale, bias, mean, inverse = saved

    def through_activation(values: jax.Array, above: jax.Array) -> jax.Array:
        shifted = _affine(values, mean, inverse * scale, bias)
        _, pull_back = jax.vjp(ACTIVATIONS[activation], shifted)
        return pull_back(above.astype(jnp.float32))[0]

    def moment(values: jax.Array, above: jax.Array) -> jax.Array:
        return (values.astype(jnp.float32) - mean) * through_activation(values, above)

    bias_gradient, moment_sum = channel_sums((through_activation, moment), x, gradient)
    return through_activation(x, gradient), bias_gradient, moment_sum * inverse


def normalize_groups(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    near: jax.Array,
    epsilon: float,
    activation: str,
    images: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalises each group of `images` consecutive images by its own statistics.

    If devices share a batch and each group is on one of them, the statistics need no communication:
    the axis of the groups is divided as the batch was. `images` divides B; other arguments and
    results are as in `normalize_batch`, with statistics of G groups, `[G, C]`.
    """
    groups = x.reshape(-1, images, *x.shape[1:])

    def normalize(group: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return normalize_batch(group, scale, bias, near, epsilon, activation)

    y, mean, var = jax.vmap(normalize)(groups)
    return y.reshape(x.shape), mean, var


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def normalize_image(
    x: jax.Array, scale: jax.Array, bias: jax.Array, groups: int, epsilon: float, activation: str
) -> jax.Array:
    """Normalises groups of successive channels of one image, scales, shifts, activates.

    Args:
        x: `[H, W, C]`.
        scale: `[C]`, float32.
        bias: `[C]`, float32.
        groups: they divide C.
        epsilon: added to the biased variance of a group.
        activation: applied last.
    """
    return _forward_image(x, scale, bias, groups, epsilon, activation)[0]


@partial(jit_per_lowering, static_argnums=(3, 4, 5))
def _forward_image(
    x: jax.Array, scale: jax.Array, bias: jax.Array, groups: int, epsilon: float, activation: str
) -> tuple[jax.Array, Saved]:
    count = float(x.size // groups)
    mean = _group_sum(channel_sum(as_float32, x[None]), groups) / count
    squares = channel_sum(partial(_squared_distance, mean), x[None])
    inverse = jax.lax.rsqrt(_group_sum(squares, groups) / count + epsilon)
    y = ACTIVATIONS[activation](_affine(x, mean, inverse * scale, bias)).astype(x.dtype)
    return y, (x, scale, bias, mean, inverse)


@partial(jit_per_lowering, static_argnums=(0, 1, 2))
def _backward_image(
    groups: int, epsilon: float, activation: str, saved: Saved, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale, _, mean, inverse = saved
    count = float(x.size // groups)
    through, bias_gradient, scale_gradient = _pull_back(saved, activation, x[None], gradient[None])
    offset = _group_sum(scale * bias_gradient, groups) / count
    slope = _group_sum(scale * scale_gradient, groups) / count * inverse
    x_gradient = inverse * (through[0] * scale - offset - (as_float32(x) - mean) * slope)
    return x_gradient.astype(x.dtype), scale_gradient, bias_gradient


normalize_image.defvjp(_forward_image, _backward_image)


def _group_sum(values: jax.Array, groups: int) -> jax.Array:
    """Returns for each of C channels the sum over its group, `[C]`."""
    sums = jnp.sum(values.reshape(groups, -1), axis=1, keepdims=True)
    return jnp.broadcast_to(sums, (groups, values.size // groups)).reshape(-1)


def _affine(x: jax.Array, mean: jax.Array, factor: jax.Array, bias: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) * factor + (bias - mean * factor)


def _distance(point: jax.Array, x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) - point


def _squared_distance(point: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.square(_distance(point, x))


class NormLayer(nnx.Module):
    """Normalises every channel over batch and space, in float32 for any input type, and activates.

    In training the biased variance of the batch normalises, and by default the unbiased one updates
    the moving statistics, as in TF1's fused kernel. With separate groups of images, the mean over
    the groups updates them.

    Args:
        channels: C.
        config: decay, epsilon, which of scale and offset exist, images that share statistics.
            `per_replica` is treated as `global`: `experiment/run_length.py` replaces it by `groups`
            if a batch has several replicas.
        frozen: use the moving statistics in training too, without updates.
        regularizer: penalty on scale and offset.
    """

    observer: Callable[[jax.Array], None] | None = None
    """Called with the input where the moving statistics normalise it."""

    def __init__(
        self,
        channels: int,
        config: schema.BatchNorm,
        *,
        frozen: bool,
        regularizer: schema.Regularizer | None = None,
    ) -> None:
        self.scale = nnx.Param(filled(channels, 1)) if config.scale else None
        self.bias = nnx.Param(filled(channels, 0)) if config.center else None
        self.mean = nnx.BatchStat(filled(channels, 0))
        self.var = nnx.BatchStat(filled(channels, 1))
        self.config = config
        self.frozen = frozen or not config.train
        self.regularizer = regularizer

    def penalty(self) -> jax.Array:
        """The regularisation loss of the layer, a float32 scalar."""
        trainable = [array[...] for array in (self.scale, self.bias) if array is not None]
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
        if self.observer is not None:
            self.observer(x)
        factor = jax.lax.rsqrt(self.var[...] + self.config.epsilon) * scale
        y = (x.astype(jnp.float32) - self.mean[...]) * factor + bias
        return ACTIVATIONS[activation](y).astype(x.dtype)

    def affine(self, channels: int) -> tuple[jax.Array, jax.Array]:
        """Returns factor and offset, `[channels]` float32."""
        scale = jnp.ones(channels, jnp.float32) if self.scale is None else self.scale[...]
        bias = jnp.zeros(channels, jnp.float32) if self.bias is None else self.bias[...]
        return scale, bias

    def observe(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Updates the moving statistics by the statistics of a batch `[B, H, W, C]`.

        Returns:
            Mean and biased variance of the batch, float32, `[1, 1, 1, C]`; `[B, 1, 1, C]` with
            separate groups of images. Gradients flow through both.
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
        if self.config.moving_variance == "unbiased":
            # A single value has no unbiased variance; TF's kernel divides by 1 then.
            var = var * (count / max(count - 1, 1))
        # Not by `[...] =`, which is traced as a slow scatter under a mesh.
        self.mean.set_value(decay * self.mean[...] + (1 - decay) * mean)
        self.var.set_value(decay * self.var[...] + (1 - decay) * var)


class GroupNormLayer(nnx.Module):
    """Normalises groups of channels of each image, in float32 for any input type, and activates.

    Args:
        channels: C.
        config: groups and epsilon.
        regularizer: penalty on scale and offset.

    Raises:
        UserError: the groups do not divide the channels.
    """

    def __init__(
        self,
        channels: int,
        config: schema.GroupNorm,
        *,
        regularizer: schema.Regularizer | None = None,
    ) -> None:
        if channels % config.groups:
            raise UserError(
                f"{config.groups} groups do not divide {channels} channels",
                where="group_norm.groups",
                fix=f"such as {math.gcd(channels, config.groups)}",
            )
        self.scale = nnx.Param(filled(channels, 1))
        self.bias = nnx.Param(filled(channels, 0))
        self.config = config
        self.regularizer = regularizer

    def penalty(self) -> jax.Array:
        """The regularisation loss of the layer, a float32 scalar."""
        return penalty_of(self.regularizer, [self.scale[...], self.bias[...]])

    def __call__(self, x: jax.Array, activation: str, *, train: bool) -> jax.Array:
        """Normalises and activates `[B, H, W, C]` of any float type; returns the same type."""
        config = self.config

        def normalize(image: jax.Array) -> jax.Array:
            scale, bias = self.scale[...], self.bias[...]
            return normalize_image(image, scale, bias, config.groups, config.epsilon, activation)

        return jax.vmap(normalize)(x)


AnyNorm = NormLayer | GroupNormLayer


def build_norm(
    channels: int, hyperparams: schema.ConvHyperparams, *, frozen: bool
) -> AnyNorm | None:
    """Returns the normalisation of a layer; None without one.

    `frozen` lets batch norm use its moving statistics in training.
    """
    penalty = norm_regularizer(hyperparams)
    if hyperparams.group_norm is not None:
        return GroupNormLayer(channels, hyperparams.group_norm, regularizer=penalty)
    if hyperparams.batch_norm is not None:
        return NormLayer(channels, hyperparams.batch_norm, frozen=frozen, regularizer=penalty)
    return None
