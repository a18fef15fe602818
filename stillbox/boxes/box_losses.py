"""Localisation losses, computed in float32 for any input type.

Codes are `[..., A, S]`, decoded boxes `[..., A, 4]`, weights `[..., A]`. Each returns weighted
losses `[..., A]`, not normalised. A NaN in a target (a code of an inverted box) has no loss, and
with `skip_zeros` a code whose target is exactly 0 has none.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from stillbox.boxes.geometry import PairFunction, giou, iou


def huber(differences: ArrayLike, *, delta: float) -> Array:
    """Returns `x^2 / 2` up to `delta` and `delta |x| - delta^2 / 2` beyond, elementwise."""
    magnitudes = jnp.abs(jnp.asarray(differences, jnp.float32))
    curved = jnp.minimum(magnitudes, delta)
    return 0.5 * curved * curved + delta * (magnitudes - curved)


def smooth_l1_loss(
    codes: ArrayLike,
    targets: ArrayLike,
    weights: ArrayLike,
    *,
    delta: float = 1.0,
    skip_zeros: bool = False,
) -> Array:
    """Returns Huber's loss, summed over the codes; `delta` ends the parabola."""
    losses = huber(_differences(codes, targets, skip_zeros), delta=delta)
    return losses.sum(axis=-1) * jnp.asarray(weights, jnp.float32)


def l1_loss(
    codes: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, skip_zeros: bool = False
) -> Array:
    """Returns the sum of the absolute differences of the codes."""
    losses = jnp.abs(_differences(codes, targets, skip_zeros))
    return losses.sum(axis=-1) * jnp.asarray(weights, jnp.float32)


def l2_loss(
    codes: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, skip_zeros: bool = False
) -> Array:
    """Returns half the sum of the squared, weighted differences of the codes.

    As in the original the weight multiplies the difference, so that it counts squared.
    """
    differences = _differences(codes, targets, skip_zeros)
    weighted = differences * jnp.asarray(weights, jnp.float32)[..., None]
    return 0.5 * (weighted * weighted).sum(axis=-1)


def iou_loss(boxes: ArrayLike, targets: ArrayLike, weights: ArrayLike) -> Array:
    """Returns one minus the IoU of predicted and target boxes (arXiv:1608.01471)."""
    return _overlap_loss(iou, boxes, targets, weights)


def giou_loss(boxes: ArrayLike, targets: ArrayLike, weights: ArrayLike) -> Array:
    """Returns one minus the generalised IoU of predicted and target boxes (arXiv:1902.09630)."""
    return _overlap_loss(giou, boxes, targets, weights)


def _differences(codes: ArrayLike, targets: ArrayLike, skip_zeros: bool) -> Array:
    codes, targets = jnp.asarray(codes, jnp.float32), jnp.asarray(targets, jnp.float32)
    skipped = jnp.isnan(targets)
    if skip_zeros:
        skipped |= targets == 0.0
    return jnp.where(skipped, 0.0, codes - targets)


def _overlap_loss(
    overlap: PairFunction, boxes: ArrayLike, targets: ArrayLike, weights: ArrayLike
) -> Array:
    boxes, targets = jnp.asarray(boxes, jnp.float32), jnp.asarray(targets, jnp.float32)
    losses = 1.0 - overlap(boxes, jnp.where(jnp.isnan(targets), boxes, targets))
    return losses * jnp.asarray(weights, jnp.float32)
