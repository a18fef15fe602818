"""Losses of classification and localization, computed in float32 for any input type.

Functions with weights, of anchors or of each class channel, return weighted losses of anchors.
Nothing is normalised. A NaN in a target (a delta of an inverted box) has no loss, and with
`skip_zeros` a target of exactly 0 has none.

The focal loss (arXiv:1708.02002) has an explicit gradient. RetinaNet has millions of logits an
image; the automatic gradient either keeps five arrays as large as the logits or takes as long as
the loss again, and the explicit one keeps the logits and needs one power.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Float32, Real

from stillbox.boxes.geometry import PairFunction, ciou, diou, giou, iou

Logits = Real[ArrayLike, "*B A C"]
Weights = Real[ArrayLike, "*B A"] | Real[ArrayLike, "*B A C"]
Deltas = Real[ArrayLike, "*B A S"]
Boxes = Real[ArrayLike, "*B A 4"]
AnchorWeights = Real[ArrayLike, "*#B A"]
AnchorLosses = Float32[Array, "*B A"]


def sigmoid_cross_entropy(
    logits: Real[ArrayLike, "*#B"], targets: Real[ArrayLike, "*#B"]
) -> Float[Array, "*B"]:
    """Returns binary cross entropy, elementwise; targets are in 0..1."""
    logits, targets = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    # -z log s(x) - (1 - z) log s(-x), written so that no exponential can overflow. `where` selects
    # the slopes of the three terms at 0 so that they add up to s(0) - z: with the slopes of `relu`
    # and `abs`, a head of zeros would have no gradient for the background.
    positive = logits >= 0.0
    remainder = jnp.log1p(jnp.exp(jnp.where(positive, -logits, logits)))
    return jnp.where(positive, logits, 0.0) - logits * targets + remainder


def bootstrapped_sigmoid_cross_entropy(
    logits: Real[ArrayLike, "*#B"],
    targets: Real[ArrayLike, "*#B"],
    *,
    alpha: float,
    hard: bool,
) -> Float[Array, "*B"]:
    """Returns binary cross entropy against `alpha t + (1 - alpha) q` (arXiv:1412.6596).

    q is the predicted probability or, if `hard`, 1 where it is above .5 and else 0. A gradient
    flows through q, as in the original.
    """
    logits, targets = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    probabilities = jax.nn.sigmoid(logits)
    predicted = (probabilities > 0.5).astype(jnp.float32) if hard else probabilities
    return sigmoid_cross_entropy(logits, alpha * targets + (1.0 - alpha) * predicted)


def sigmoid_loss(logits: Logits, targets: Logits, weights: Weights) -> AnchorLosses:
    """Returns binary cross entropy, summed over the classes."""
    return weighted_sum(sigmoid_cross_entropy(logits, targets), weights)


def bootstrapped_sigmoid_loss(
    logits: Logits, targets: Logits, weights: Weights, *, alpha: float, hard: bool
) -> AnchorLosses:
    """Returns `bootstrapped_sigmoid_cross_entropy`, summed over the classes."""
    losses = bootstrapped_sigmoid_cross_entropy(logits, targets, alpha=alpha, hard=hard)
    return weighted_sum(losses, weights)


def softmax_loss(
    logits: Logits, targets: Logits, weights: Weights, *, logit_scale: float = 1.0
) -> AnchorLosses:
    """Returns cross entropy over the class logits divided by `logit_scale`.

    It is 0 for a target of all zeros. A class's weight multiplies its term, and so the loss of the
    anchors of that class. The original takes the mean of the weights of all classes, which is the
    same if they are equal.
    """
    logits = jnp.asarray(logits, jnp.float32) / logit_scale
    losses = -jnp.asarray(targets, jnp.float32) * jax.nn.log_softmax(logits)
    return weighted_sum(losses, weights)


def softmax_against_logits_loss(
    logits: Logits, targets: Logits, weights: Weights, *, logit_scale: float = 1.0
) -> AnchorLosses:
    """Returns cross entropy against the softmax of targets that are logits too.

    One-hot targets are taken as logits of 0 and 1. `logit_scale` divides logits and targets.
    """
    probabilities = jax.nn.softmax(jnp.asarray(targets, jnp.float32) / logit_scale)
    return softmax_loss(logits, probabilities, weights, logit_scale=logit_scale)


def weighted_sum(losses: Float[Array, "*B A C"], weights: Weights) -> AnchorLosses:
    """Returns the sums over the classes."""
    weights = jnp.asarray(weights, jnp.float32)
    if weights.ndim == losses.ndim:
        return (losses * weights).sum(axis=-1)
    return losses.sum(axis=-1) * weights


# Far below any probability that float32 logits can express, far above float32's smallest number.
_TINY = 1e-30


def sigmoid_focal_cross_entropy(
    logits: Real[ArrayLike, "*#B"],
    targets: Real[ArrayLike, "*#B"],
    *,
    gamma: float,
    alpha: float | None,
) -> Float[Array, "*B"]:
    """Returns binary cross entropy times `(1 - p_t)^gamma * alpha_t`, elementwise.

    `p_t` is the predicted probability of the target. No gradient flows into `targets`.

    Args:
        targets: in 0..1.
        gamma: 0 is plain cross entropy.
        alpha: weight of positive targets; negative ones have `1 - alpha`. None: both 1.
    """
    arrays = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    return _focal(*jnp.broadcast_arrays(*arrays), gamma, alpha)


def sigmoid_focal_loss(
    logits: Logits,
    targets: Logits,
    weights: Weights,
    *,
    gamma: float = 2.0,
    alpha: float | None = None,
) -> AnchorLosses:
    """Returns `sigmoid_focal_cross_entropy`, summed over the classes."""
    losses = sigmoid_focal_cross_entropy(logits, targets, gamma=gamma, alpha=alpha)
    return weighted_sum(losses, weights)


def quality_focal_loss(
    logits: Logits, targets: Logits, weights: Weights, *, beta: float = 2.0
) -> AnchorLosses:
    """Returns binary cross entropy times `|p - t|^beta`, summed over the classes.

    The target of an anchor's class is the quality of its box, in 0..1 (arXiv:2006.04388, (5)). The
    gradient flows through both factors.
    """
    logits, targets = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    mistakes = _mistakes(logits, targets)
    return weighted_sum(sigmoid_cross_entropy(logits, targets) * mistakes**beta, weights)


def varifocal_loss(
    logits: Logits,
    targets: Logits,
    weights: Weights,
    *,
    alpha: float = 0.75,
    gamma: float = 2.0,
    weighted_by_quality: bool = True,
) -> AnchorLosses:
    """Returns binary cross entropy, weighted by quality or focally, summed over the classes.

    A class with a quality above 0 has its quality as weight, or 1; the others have
    `alpha p^gamma` (arXiv:2008.13367, (2)), through which the gradient flows.
    """
    logits, targets = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    positive = targets if weighted_by_quality else 1.0
    mistakes = _mistakes(logits, targets)
    focal = jnp.where(targets > 0.0, positive, alpha * mistakes**gamma)
    return weighted_sum(sigmoid_cross_entropy(logits, targets) * focal, weights)


def _mistakes(logits: Float[Array, "*B"], targets: Float[Array, "*B"]) -> Float[Array, "*B"]:
    # The floor keeps the gradient of a power below 1 finite at 0.
    return jnp.maximum(jnp.abs(jax.nn.sigmoid(logits) - targets), _TINY)


class _Parts(NamedTuple):
    """Common terms of loss and gradient, elementwise."""

    probability: Float[Array, "*B"]
    """s(x), of the class."""
    complement: Float[Array, "*B"]
    """s(-x), with all of its digits."""
    entropy: Float[Array, "*B"]
    """-t log s(x) - (1 - t) log s(-x)."""
    mistake: Float[Array, "*B"]
    """t s(-x) + (1 - t) s(x), which is 1 - p_t."""
    alpha: Float[Array, "*B"] | float
    """Weight of the element."""


def _parts(logits: Float[Array, "*B"], targets: Float[Array, "*B"], alpha: float | None) -> _Parts:
    # One exponential of a number that is never above 0.
    decay = jnp.exp(-jnp.abs(logits))
    larger = 1.0 / (1.0 + decay)
    smaller = decay * larger
    positive = logits >= 0.0
    probability = jnp.where(positive, larger, smaller)
    complement = jnp.where(positive, smaller, larger)
    # Not 1 - p_t, which would lose all digits near 0. The floor keeps a power with a negative
    # exponent finite at 0.
    mistake = jnp.maximum(targets * complement + (1.0 - targets) * probability, _TINY)
    return _Parts(
        probability,
        complement,
        entropy=jnp.maximum(logits, 0.0) - logits * targets + jnp.log1p(decay),
        mistake=mistake,
        alpha=1.0 if alpha is None else targets * alpha + (1.0 - targets) * (1.0 - alpha),
    )


def _power(base: Float[Array, "*B"], exponent: float) -> Float[Array, "*B"]:
    """Returns a power of positive numbers.

    An exponent that ends in .5 becomes a product with a square root: on a CPU, XLA's general power
    is a function call for every element.
    """
    whole = math.floor(exponent)
    if exponent - whole == 0.5:
        return base**whole * jnp.sqrt(base)
    return base**exponent


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _focal(
    logits: Float[Array, "*B"], targets: Float[Array, "*B"], gamma: float, alpha: float | None
) -> Float[Array, "*B"]:
    parts = _parts(logits, targets, alpha)
    return parts.alpha * parts.entropy * _power(parts.mistake, gamma)


def _focal_forward(
    logits: Float[Array, "*B"], targets: Float[Array, "*B"], gamma: float, alpha: float | None
) -> tuple[Float[Array, "*B"], tuple[Array, Array]]:
    return _focal(logits, targets, gamma, alpha), (logits, targets)


def _focal_backward(
    gamma: float, alpha: float | None, kept: tuple[Array, Array], cotangent: Float[Array, "*B"]
) -> tuple[Float[Array, "*B"], None]:
    logits, targets = kept
    # Without the barrier, the compiler would reuse, and so keep, the terms of the forward pass.
    logits = jax.lax.optimization_barrier(logits)
    parts = _parts(logits, targets, alpha)
    # d entropy / dx = s(x) - t, and d mistake / dx = (1 - 2 t) s(x) s(-x).
    of_entropy = parts.mistake * (parts.probability - targets)
    of_mistake = (1.0 - 2.0 * targets) * parts.probability * parts.complement
    slope = _power(parts.mistake, gamma - 1.0) * (of_entropy + gamma * parts.entropy * of_mistake)
    return cotangent * parts.alpha * slope, None


_focal.defvjp(_focal_forward, _focal_backward)


def huber(differences: Real[ArrayLike, "*B"], *, delta: float) -> Float32[Array, "*B"]:
    """Returns `x^2 / 2` up to `delta` and `delta |x| - delta^2 / 2` beyond, elementwise."""
    magnitudes = jnp.abs(jnp.asarray(differences, jnp.float32))
    curved = jnp.minimum(magnitudes, delta)
    return 0.5 * curved * curved + delta * (magnitudes - curved)


def smooth_l1_loss(
    deltas: Deltas,
    targets: Deltas,
    weights: AnchorWeights,
    *,
    delta: float = 1.0,
    skip_zeros: bool = False,
) -> AnchorLosses:
    """Returns Huber's loss, summed over the deltas; `delta` ends the parabola."""
    losses = huber(_differences(deltas, targets, skip_zeros), delta=delta)
    return losses.sum(axis=-1) * jnp.asarray(weights, jnp.float32)


def l1_loss(
    deltas: Deltas, targets: Deltas, weights: AnchorWeights, *, skip_zeros: bool = False
) -> AnchorLosses:
    """Returns the sum of the absolute differences of the deltas."""
    losses = jnp.abs(_differences(deltas, targets, skip_zeros))
    return losses.sum(axis=-1) * jnp.asarray(weights, jnp.float32)


def l2_loss(
    deltas: Deltas, targets: Deltas, weights: AnchorWeights, *, skip_zeros: bool = False
) -> AnchorLosses:
    """Returns half the sum of the squared, weighted differences of the deltas.

    As in the original the weight multiplies the difference, so that it counts squared.
    """
    differences = _differences(deltas, targets, skip_zeros)
    weighted = differences * jnp.asarray(weights, jnp.float32)[..., None]
    return 0.5 * (weighted * weighted).sum(axis=-1)


def iou_loss(boxes: Boxes, targets: Boxes, weights: AnchorWeights) -> AnchorLosses:
    """Returns one minus the IoU of predicted and target boxes (arXiv:1608.01471)."""
    return _overlap_loss(iou, boxes, targets, weights)


def giou_loss(boxes: Boxes, targets: Boxes, weights: AnchorWeights) -> AnchorLosses:
    """Returns one minus the generalised IoU of predicted and target boxes (arXiv:1902.09630)."""
    return _overlap_loss(giou, boxes, targets, weights)


def diou_loss(boxes: Boxes, targets: Boxes, weights: AnchorWeights) -> AnchorLosses:
    """Returns one minus the distance-IoU of predicted and target boxes (arXiv:1911.08287)."""
    return _overlap_loss(diou, boxes, targets, weights)


def ciou_loss(boxes: Boxes, targets: Boxes, weights: AnchorWeights) -> AnchorLosses:
    """Returns one minus the complete IoU of predicted and target boxes (arXiv:1911.08287)."""
    return _overlap_loss(ciou, boxes, targets, weights)


def _differences(deltas: Deltas, targets: Deltas, skip_zeros: bool) -> Float32[Array, "*B A S"]:
    deltas, targets = jnp.asarray(deltas, jnp.float32), jnp.asarray(targets, jnp.float32)
    skipped = jnp.isnan(targets)
    if skip_zeros:
        skipped |= targets == 0.0
    return jnp.where(skipped, 0.0, deltas - targets)


def _overlap_loss(
    overlap: PairFunction, boxes: Boxes, targets: Boxes, weights: AnchorWeights
) -> AnchorLosses:
    boxes, targets = jnp.asarray(boxes, jnp.float32), jnp.asarray(targets, jnp.float32)
    losses = 1.0 - overlap(boxes, jnp.where(jnp.isnan(targets), boxes, targets))
    return losses * jnp.asarray(weights, jnp.float32)
