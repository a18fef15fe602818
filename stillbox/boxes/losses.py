"""Classification losses, computed in float32 for any input type.

Logits and targets of elementwise functions are `[...]`, otherwise `[..., A, C]`. Functions with
weights, `[..., A]` or `[..., A, C]`, return weighted losses `[..., A]`. Nothing is normalised.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def sigmoid_cross_entropy(logits: ArrayLike, targets: ArrayLike) -> Array:
    """Returns binary cross entropy, elementwise; targets are in 0..1."""
    logits, targets = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    # -z log s(x) - (1 - z) log s(-x), written so that no exponential can overflow. `where` selects
    # the slopes of the three terms at 0 so that they add up to s(0) - z: with those of `relu` and
    # `abs`, a head of zeros would have no gradient for the background.
    positive = logits >= 0.0
    remainder = jnp.log1p(jnp.exp(jnp.where(positive, -logits, logits)))
    return jnp.where(positive, logits, 0.0) - logits * targets + remainder


def bootstrapped_sigmoid_cross_entropy(
    logits: ArrayLike, targets: ArrayLike, *, alpha: float, hard: bool
) -> Array:
    """Returns binary cross entropy against `alpha t + (1 - alpha) q` (arXiv:1412.6596).

    q is the predicted probability or, if `hard`, 1 where it is above .5 and else 0. A gradient
    flows through q, as in the original.
    """
    logits, targets = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    probabilities = jax.nn.sigmoid(logits)
    own = (probabilities > 0.5).astype(jnp.float32) if hard else probabilities
    return sigmoid_cross_entropy(logits, alpha * targets + (1.0 - alpha) * own)


def sigmoid_loss(logits: ArrayLike, targets: ArrayLike, weights: ArrayLike) -> Array:
    """Returns binary cross entropy, summed over the classes."""
    return weighted_sum(sigmoid_cross_entropy(logits, targets), weights)


def bootstrapped_sigmoid_loss(
    logits: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, alpha: float, hard: bool
) -> Array:
    """Returns `bootstrapped_sigmoid_cross_entropy`, summed over the classes."""
    losses = bootstrapped_sigmoid_cross_entropy(logits, targets, alpha=alpha, hard=hard)
    return weighted_sum(losses, weights)


def softmax_loss(
    logits: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, logit_scale: float = 1.0
) -> Array:
    """Returns cross entropy over the class slots of logits divided by `logit_scale`.

    It is 0 for a target of all zeros. A slot's weight multiplies its term, and so the loss of the
    anchors of that class; the original takes the mean of the slots' weights, which is the same if
    they are equal.
    """
    logits = jnp.asarray(logits, jnp.float32) / logit_scale
    losses = -jnp.asarray(targets, jnp.float32) * jax.nn.log_softmax(logits)
    return weighted_sum(losses, weights)


def softmax_against_logits_loss(
    logits: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, logit_scale: float = 1.0
) -> Array:
    """Returns cross entropy against the softmax of targets that are logits too.

    One-hot targets are taken as logits of 0 and 1. `logit_scale` divides logits and targets.
    """
    probabilities = jax.nn.softmax(jnp.asarray(targets, jnp.float32) / logit_scale)
    return softmax_loss(logits, probabilities, weights, logit_scale=logit_scale)


def weighted_sum(losses: Array, weights: ArrayLike) -> Array:
    """Returns `[..., A]` of losses `[..., A, C]`; weights are those of anchors or slots."""
    weights = jnp.asarray(weights, jnp.float32)
    if weights.ndim == losses.ndim:
        return (losses * weights).sum(axis=-1)
    return losses.sum(axis=-1) * weights
