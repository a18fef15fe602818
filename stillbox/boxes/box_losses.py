"""Localisation losses, computed in float32 whatever comes in (fact sheet 3.6).

Each returns one number for each anchor, `[..., A]`, weighted. What is not a number in a target (a
code of an inverted box) counts as met. Nothing is normalised here.
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
    """Returns Huber's loss of each anchor, summed over its codes and weighted.

    Args:
        codes: `[..., A, S]`.
        targets: `[..., A, S]`.
        weights: `[..., A]`.
        delta: where the parabola goes over into the line.
        skip_zeros: codes whose target is exactly 0 count as met.
    """
    losses = huber(_differences(codes, targets, skip_zeros), delta=delta)
    return losses.sum(axis=-1) * jnp.asarray(weights, jnp.float32)


def l1_loss(
    codes: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, skip_zeros: bool = False
) -> Array:
    """Returns the sum of the absolute differences of each anchor's codes, weighted.

    Args:
        codes: `[..., A, S]`.
        targets: `[..., A, S]`.
        weights: `[..., A]`.
        skip_zeros: as for `smooth_l1_loss`.
    """
    losses = jnp.abs(_differences(codes, targets, skip_zeros))
    return losses.sum(axis=-1) * jnp.asarray(weights, jnp.float32)


def l2_loss(
    codes: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, skip_zeros: bool = False
) -> Array:
    """Returns half the sum of the squared, weighted differences of each anchor's codes.

    As in the original the weight multiplies the difference, so that it counts squared.

    Args:
        codes: `[..., A, S]`.
        targets: `[..., A, S]`.
        weights: `[..., A]`.
        skip_zeros: as for `smooth_l1_loss`.
    """
    differences = _differences(codes, targets, skip_zeros)
    weighted = differences * jnp.asarray(weights, jnp.float32)[..., None]
    return 0.5 * (weighted * weighted).sum(axis=-1)


def iou_loss(boxes: ArrayLike, targets: ArrayLike, weights: ArrayLike) -> Array:
    """Returns one minus the IoU of each anchor's boxes, weighted (arXiv:1608.01471).

    Args:
        boxes: `[..., A, 4]`, decoded.
        targets: `[..., A, 4]`, decoded.
        weights: `[..., A]`.
    """
    return _overlap_loss(iou, boxes, targets, weights)


def giou_loss(boxes: ArrayLike, targets: ArrayLike, weights: ArrayLike) -> Array:
    """Returns one minus the generalised IoU of each anchor's boxes, weighted (arXiv:1902.09630).

    Args:
        boxes: `[..., A, 4]`, decoded.
        targets: `[..., A, 4]`, decoded.
        weights: `[..., A]`.
    """
    return _overlap_loss(giou, boxes, targets, weights)


def _differences(codes: ArrayLike, targets: ArrayLike, skip_zeros: bool) -> Array:
    codes, targets = jnp.asarray(codes, jnp.float32), jnp.asarray(targets, jnp.float32)
    met = jnp.isnan(targets)
    if skip_zeros:
        met |= targets == 0.0
    return jnp.where(met, 0.0, codes - targets)


def _overlap_loss(
    overlap: PairFunction, boxes: ArrayLike, targets: ArrayLike, weights: ArrayLike
) -> Array:
    boxes, targets = jnp.asarray(boxes, jnp.float32), jnp.asarray(targets, jnp.float32)
    losses = 1.0 - overlap(boxes, jnp.where(jnp.isnan(targets), boxes, targets))
    return losses * jnp.asarray(weights, jnp.float32)
