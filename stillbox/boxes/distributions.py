"""Distances from a point to the edges of a box, and their distributions over bins.

Distances are `[top, left, bottom, right]` from the centre of an anchor, in units of the stride of
its feature map. A head may predict each as logits of n + 1 bins; the mean of the distribution is
the distance (arXiv:2006.04388).
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real

# The right neighbour of a distance must be a bin too.
_MARGIN = 0.1


def encode_distances(
    boxes: Real[ArrayLike, "*#B 4"],
    points: Real[ArrayLike, "*#B 2"],
    *,
    longest: float | None = None,
) -> Float[Array, "*B 4"]:
    """Returns the distances from points to the edges of boxes.

    As `bbox2distance` in `mmdet/structures/bbox/transforms.py`.

    Args:
        boxes: in the unit of the points.
        points: row and column.
        longest: index of the last bin; distances are clipped to 0 and just below it. None: they
            are not clipped.
    """
    boxes, points = jnp.asarray(boxes, jnp.float32), jnp.asarray(points, jnp.float32)
    distances = jnp.concatenate([points - boxes[..., :2], boxes[..., 2:] - points], axis=-1)
    return distances if longest is None else jnp.clip(distances, 0.0, longest - _MARGIN)


def decode_distances(
    distances: Real[ArrayLike, "*#B 4"], points: Real[ArrayLike, "*#B 2"]
) -> Float[Array, "*B 4"]:
    """Returns the boxes around points."""
    distances, points = jnp.asarray(distances, jnp.float32), jnp.asarray(points, jnp.float32)
    return jnp.concatenate([points - distances[..., :2], points + distances[..., 2:]], axis=-1)


def mean_distances(logits: Real[ArrayLike, "*B S"], *, bins: int) -> Float[Array, "*B 4"]:
    """Returns the means of four distributions.

    Args:
        logits: S = 4 `bins`, edge after edge.
        bins: numbers of each distribution, for the distances 0, 1 and so on.
    """
    logits = jnp.asarray(logits, jnp.float32)
    shares = jax.nn.softmax(logits.reshape(*logits.shape[:-1], 4, bins), axis=-1)
    # At the default precision accelerators round both factors.
    numbers = jnp.arange(bins, dtype=jnp.float32)
    return jnp.matmul(shares, numbers, precision=jax.lax.Precision.HIGHEST)


def distribution_focal_loss(
    logits: Real[ArrayLike, "*B K"], targets: Real[ArrayLike, "*B"]
) -> Float[Array, "*B"]:
    """Returns the cross entropy with the two bins beside a distance (arXiv:2006.04388, (6)).

    Args:
        logits: of K bins.
        targets: distances in 0..K-1; others are clipped.
    """
    logits, targets = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    bins = logits.shape[-1]
    targets = jnp.clip(targets, 0.0, bins - 1.0)
    left = jnp.minimum(jnp.floor(targets), bins - 2.0)
    share = targets - left
    places = jnp.arange(bins, dtype=jnp.float32)
    wanted = jnp.where(places == left[..., None], 1.0 - share[..., None], 0.0)
    wanted = jnp.where(places == left[..., None] + 1.0, share[..., None], wanted)
    return -jnp.sum(wanted * jax.nn.log_softmax(logits), axis=-1)


def distillation_loss(
    logits: Real[ArrayLike, "*B K"],
    teacher_logits: Real[ArrayLike, "*B K"],
    *,
    temperature: float = 10.0,
) -> Float[Array, "*B"]:
    """Returns the divergence of a distribution from a teacher's (arXiv:2102.12252).

    Both logits are divided by the temperature. The terms are averaged over the bins and multiplied
    by the squared temperature, as `mmdet/models/losses/kd_loss.py`. No gradient flows into the
    teacher.
    """
    student = jax.nn.log_softmax(jnp.asarray(logits, jnp.float32) / temperature)
    teacher = jax.lax.stop_gradient(jnp.asarray(teacher_logits, jnp.float32)) / temperature
    terms = jax.nn.softmax(teacher) * (jax.nn.log_softmax(teacher) - student)
    return jnp.mean(terms, axis=-1) * temperature**2


def centerness(
    boxes: Real[ArrayLike, "*#B 4"], points: Real[ArrayLike, "*#B 2"]
) -> Float[Array, "*B"]:
    """Returns how central points are in boxes, 1 in the middle and 0 outside (arXiv:1904.01355).

    The root of the product of the ratios of the smaller to the larger distance, by axis.
    """
    distances = encode_distances(boxes, points)
    low, high = distances[..., :2], distances[..., 2:]
    inside = jnp.minimum(low, high).min(axis=-1) > 0.0
    # Ratios of points outside are replaced before the root: its gradient would be NaN.
    smaller, larger = jnp.minimum(low, high), jnp.maximum(low, high)
    kept = inside[..., None]
    ratios = jnp.where(kept, smaller, 1.0) / jnp.where(kept, larger, 1.0)
    return jnp.where(inside, jnp.sqrt(jnp.prod(ratios, axis=-1)), 0.0)
