"""Batch normalisation with its activation as one operation with a derivative of its own.

Autodiff would save every intermediate array and reduce over them one after the other. Here only
the input is kept. The backward pass reads it and the gradient three times, or twice in float32 on a
CPU.
"""

from functools import partial

import jax
import jax.numpy as jnp

from stillbox.models.layers.activations import ACTIVATIONS
from stillbox.models.layers.lowering.reductions import channel_sum, channel_sums

Saved = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def batch_statistics(x: jax.Array, near: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns mean and biased variance of each channel, float32, `[C]`.

    float32 takes two passes. Shorter types take one, over the differences from `near` and their
    squares: with a mean r deviations away from `near` the variance loses about r^2 / 2^24, while
    bfloat16 has already rounded each value by r / 2^9 of a deviation.

    Args:
        x: `[B, H, W, C]`.
        near: `[C]`, float32, an estimate of the mean. Only lost digits depend on it.
    """
    count = float(x.size // x.shape[-1])  # a batch may have more values than an int32
    if x.dtype == jnp.float32:
        mean = channel_sum(_as_float32, x) / count
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


# Traced once for all layers of a shape: a CPU's form has a hundred equations.
@partial(jax.jit, static_argnums=(4, 5))
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


@partial(jax.jit, static_argnums=(0, 1))
def _backward(
    epsilon: float,
    activation: str,
    saved: Saved,
    gradients: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    x, scale, bias, mean, inverse = saved
    count = float(x.size // x.shape[-1])
    factor = inverse * scale

    def through_activation(values: jax.Array, above: jax.Array) -> jax.Array:
        shifted = _affine(values, mean, factor, bias)
        _, pull_back = jax.vjp(ACTIVATIONS[activation], shifted)
        return pull_back(above.astype(jnp.float32))[0]

    def moment(values: jax.Array, above: jax.Array) -> jax.Array:
        return (values.astype(jnp.float32) - mean) * through_activation(values, above)

    terms = through_activation, moment
    bias_gradient, moment_sum = channel_sums(terms, x, gradients[0])
    scale_gradient = moment_sum * inverse
    # Factors of channels are combined first, so that the large arrays are read for two products
    # and two sums only.
    slope = -factor * inverse * scale_gradient / count
    offset = -factor * bias_gradient / count - slope * mean
    through = through_activation(x, gradients[0]) * factor
    x_gradient = through + (x.astype(jnp.float32) * slope + offset)
    return x_gradient.astype(x.dtype), scale_gradient, bias_gradient, jnp.zeros_like(mean)


normalize_batch.defvjp(_forward, _backward)


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

    If devices share a batch and each group lies on one of them, the statistics need no
    communication: the axis of the groups is divided as the batch was. The arguments are those of
    `normalize_batch`; `images` divides B.

    Returns:
        The result in x's type, and mean and biased variance of the G groups `[G, C]`, through
        which no gradient flows.
    """
    groups = x.reshape(-1, images, *x.shape[1:])

    def normalize(group: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return normalize_batch(group, scale, bias, near, epsilon, activation)

    y, mean, var = jax.vmap(normalize)(groups)
    return y.reshape(x.shape), mean, var


def _affine(x: jax.Array, mean: jax.Array, factor: jax.Array, bias: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) * factor + (bias - mean * factor)


def _as_float32(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32)


def _distance(point: jax.Array, x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) - point


def _squared_distance(point: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.square(_distance(point, x))
