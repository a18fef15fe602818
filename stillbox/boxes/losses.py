"""Classification and localisation losses, computed in float32 whatever comes in (fact sheet 3.6).

The elementwise functions return one number for each class slot; those that take weights return
one for each anchor, `[..., A]`. Nothing is normalised here.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

# Far below any probability that float32 logits can express, far above float32's smallest number.
_TINY = 1e-30


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


def sigmoid_focal_cross_entropy(
    logits: ArrayLike, targets: ArrayLike, *, gamma: float, alpha: float | None
) -> Array:
    """Returns binary cross entropy times `(1 - p_t)^gamma * alpha_t`, elementwise.

    `p_t` is the probability that the model gives to the truth (arXiv:1708.02002).

    Args:
        logits: `[...]`.
        targets: `[...]`, in 0..1.
        gamma: 0 leaves plain cross entropy.
        alpha: weight of positive targets, `1 - alpha` that of negative ones; None weighs neither.
    """
    logits, targets = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    # Not 1 - p_t: the difference would lose every digit for a confident model.
    doubt = targets * jax.nn.sigmoid(-logits) + (1.0 - targets) * jax.nn.sigmoid(logits)
    # The floor keeps the power's slope finite at 0 when gamma is below 1.
    losses = sigmoid_cross_entropy(logits, targets) * jnp.maximum(doubt, _TINY) ** gamma
    if alpha is None:
        return losses
    return losses * (targets * alpha + (1.0 - targets) * (1.0 - alpha))


def softmax_cross_entropy(
    logits: ArrayLike, targets: ArrayLike, *, logit_scale: float = 1.0
) -> Array:
    """Returns cross entropy over the last axis, `[..., A]`; 0 for a target of all zeros.

    Args:
        logits: `[..., A, C]`.
        targets: `[..., A, C]`.
        logit_scale: divides the logits first.
    """
    logits = jnp.asarray(logits, jnp.float32) / logit_scale
    return -jnp.sum(jnp.asarray(targets, jnp.float32) * jax.nn.log_softmax(logits), axis=-1)


def huber(differences: ArrayLike, *, delta: float) -> Array:
    """Returns `x^2 / 2` up to `delta` and `delta |x| - delta^2 / 2` beyond, elementwise."""
    magnitudes = jnp.abs(jnp.asarray(differences, jnp.float32))
    curved = jnp.minimum(magnitudes, delta)
    return 0.5 * curved * curved + delta * (magnitudes - curved)


def sigmoid_loss(logits: ArrayLike, targets: ArrayLike, weights: ArrayLike) -> Array:
    """Returns binary cross entropy of each anchor, summed over the classes and weighted.

    Args:
        logits: `[..., A, C]`.
        targets: `[..., A, C]`.
        weights: `[..., A]`.
    """
    return _weigh(sigmoid_cross_entropy(logits, targets).sum(axis=-1), weights)


def sigmoid_focal_loss(
    logits: ArrayLike,
    targets: ArrayLike,
    weights: ArrayLike,
    *,
    gamma: float = 2.0,
    alpha: float | None = None,
) -> Array:
    """Returns the focal loss of each anchor, summed over the classes and weighted.

    Args:
        logits: `[..., A, C]`.
        targets: `[..., A, C]`.
        weights: `[..., A]`.
        gamma: as for `sigmoid_focal_cross_entropy`.
        alpha: as there.
    """
    losses = sigmoid_focal_cross_entropy(logits, targets, gamma=gamma, alpha=alpha)
    return _weigh(losses.sum(axis=-1), weights)


def softmax_loss(
    logits: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, logit_scale: float = 1.0
) -> Array:
    """Returns cross entropy of each anchor, weighted.

    Args:
        logits: `[..., A, C]`.
        targets: `[..., A, C]`.
        weights: `[..., A]`.
        logit_scale: divides the logits first.
    """
    return _weigh(softmax_cross_entropy(logits, targets, logit_scale=logit_scale), weights)


def smooth_l1_loss(
    codes: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, delta: float = 1.0
) -> Array:
    """Returns Huber's loss of each anchor, summed over its codes and weighted.

    A target that is NaN (the code of an inverted box) counts as met.

    Args:
        codes: `[..., A, 4]`.
        targets: `[..., A, 4]`.
        weights: `[..., A]`.
        delta: where the parabola goes over into the line.
    """
    codes, targets = jnp.asarray(codes, jnp.float32), jnp.asarray(targets, jnp.float32)
    differences = jnp.where(jnp.isnan(targets), 0.0, codes - targets)
    return _weigh(huber(differences, delta=delta).sum(axis=-1), weights)


def _weigh(losses: Array, weights: ArrayLike) -> Array:
    return losses * jnp.asarray(weights, jnp.float32)
