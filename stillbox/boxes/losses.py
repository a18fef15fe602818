"""Classification losses, computed in float32 whatever comes in (fact sheet 3.6).

The elementwise functions return one number for each class slot; those that take weights return
one for each anchor, `[..., A]`. Weights belong to anchors, `[..., A]`, or to their class slots,
`[..., A, C]`. Nothing is normalised here.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def sigmoid_cross_entropy(logits: ArrayLike, targets: ArrayLike) -> Array:
    """Returns binary cross entropy, elementwise.

    Args:
        logits: `[...]`.
        targets: `[...]`, in 0..1.
    """
    logits, targets = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    # -z log s(x) - (1 - z) log s(-x), written so that no exponential can overflow. The slopes at 0
    # of the three terms are chosen by `where` to add up to s(0) - z: with those that `relu` and
    # `abs` happen to have there, a head of zeros would learn nothing about the background.
    positive = logits >= 0.0
    remainder = jnp.log1p(jnp.exp(jnp.where(positive, -logits, logits)))
    return jnp.where(positive, logits, 0.0) - logits * targets + remainder


def bootstrapped_sigmoid_cross_entropy(
    logits: ArrayLike, targets: ArrayLike, *, alpha: float, hard: bool
) -> Array:
    """Returns binary cross entropy against targets that believe the model a little, elementwise.

    The target is `alpha t + (1 - alpha) q`, q the model's own probability, or its own decision
    (arXiv:1412.6596). A gradient flows through q, as in the original.

    Args:
        logits: `[...]`.
        targets: `[...]`, in 0..1.
        alpha: trust in the label, in 0..1.
        hard: q is 1 where the probability is above .5 and 0 elsewhere.
    """
    logits, targets = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    probabilities = jax.nn.sigmoid(logits)
    own = (probabilities > 0.5).astype(jnp.float32) if hard else probabilities
    return sigmoid_cross_entropy(logits, alpha * targets + (1.0 - alpha) * own)


def sigmoid_loss(logits: ArrayLike, targets: ArrayLike, weights: ArrayLike) -> Array:
    """Returns binary cross entropy of each anchor, weighted and summed over the classes.

    Args:
        logits: `[..., A, C]`.
        targets: `[..., A, C]`.
        weights: `[..., A]` or `[..., A, C]`.
    """
    return weighted_sum(sigmoid_cross_entropy(logits, targets), weights)


def bootstrapped_sigmoid_loss(
    logits: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, alpha: float, hard: bool
) -> Array:
    """Returns the bootstrapped cross entropy of each anchor, weighted and summed over the classes.

    Args:
        logits: `[..., A, C]`.
        targets: `[..., A, C]`.
        weights: `[..., A]` or `[..., A, C]`.
        alpha: as for `bootstrapped_sigmoid_cross_entropy`.
        hard: as there.
    """
    losses = bootstrapped_sigmoid_cross_entropy(logits, targets, alpha=alpha, hard=hard)
    return weighted_sum(losses, weights)


def softmax_loss(
    logits: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, logit_scale: float = 1.0
) -> Array:
    """Returns cross entropy over the class slots of each anchor, weighted.

    It is 0 for a target of all zeros. A slot's weight multiplies its part of the sum, and so the
    loss of the anchors of that class; the original takes the mean of the slots' weights, which is
    the same where they are alike.

    Args:
        logits: `[..., A, C]`.
        targets: `[..., A, C]`.
        weights: `[..., A]` or `[..., A, C]`.
        logit_scale: divides the logits first.
    """
    logits = jnp.asarray(logits, jnp.float32) / logit_scale
    losses = -jnp.asarray(targets, jnp.float32) * jax.nn.log_softmax(logits)
    return weighted_sum(losses, weights)


def softmax_against_logits_loss(
    logits: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, logit_scale: float = 1.0
) -> Array:
    """Returns cross entropy against the softmax of targets that are logits too, weighted.

    Args:
        logits: `[..., A, C]`.
        targets: `[..., A, C]`, such as another model's logits; one-hot targets are taken as
            logits of 0 and 1 all the same.
        weights: `[..., A]` or `[..., A, C]`.
        logit_scale: divides logits and targets first.
    """
    probabilities = jax.nn.softmax(jnp.asarray(targets, jnp.float32) / logit_scale)
    return softmax_loss(logits, probabilities, weights, logit_scale=logit_scale)


def weighted_sum(losses: Array, weights: ArrayLike) -> Array:
    """Returns `[..., A]` of the slots' losses `[..., A, C]` and weights of anchors or slots."""
    weights = jnp.asarray(weights, jnp.float32)
    if weights.ndim == losses.ndim:
        return (losses * weights).sum(axis=-1)
    return losses.sum(axis=-1) * weights
