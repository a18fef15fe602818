"""Areas and overlaps of boxes, and the frames that their coordinates refer to.

Boxes are `[ymin, xmin, ymax, xmax]` in the last axis. The functions of two sets of boxes work pair
by pair and broadcast their leading axes; `pairwise` makes every pair of two lists.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

PairFunction = Callable[[ArrayLike, ArrayLike], Array]


def _corners(boxes: ArrayLike) -> tuple[Array, Array, Array, Array]:
    """Returns ymin, xmin, ymax, xmax, each without the last axis."""
    boxes = jnp.asarray(boxes, jnp.float32)
    return boxes[..., 0], boxes[..., 1], boxes[..., 2], boxes[..., 3]


def area(boxes: ArrayLike) -> Array:
    """Returns height times width, `[...]` for boxes `[..., 4]`; negative where one is inverted."""
    ymin, xmin, ymax, xmax = _corners(boxes)
    return (ymax - ymin) * (xmax - xmin)


def intersection(boxes: ArrayLike, others: ArrayLike) -> Array:
    """Returns the area that each pair shares, 0 where they do not meet."""
    ymin, xmin, ymax, xmax = _corners(boxes)
    other_ymin, other_xmin, other_ymax, other_xmax = _corners(others)
    height = jnp.minimum(ymax, other_ymax) - jnp.maximum(ymin, other_ymin)
    width = jnp.minimum(xmax, other_xmax) - jnp.maximum(xmin, other_xmin)
    return jnp.maximum(height, 0.0) * jnp.maximum(width, 0.0)


def iou(boxes: ArrayLike, others: ArrayLike) -> Array:
    """Returns intersection over union of each pair.

    It is 0 where the intersection is 0, so that padding boxes `[0, 0, 0, 0]`, whose union may be 0
    as well, resemble nothing (fact sheet 3.5).
    """
    shared = intersection(boxes, others)
    return _share(shared, area(boxes) + area(others) - shared)


def ioa(boxes: ArrayLike, others: ArrayLike) -> Array:
    """Returns which part of each of `others` its partner in `boxes` covers.

    The area of the second box divides, as in the original, whose matchers hold ground truth
    against anchors with it.
    """
    shared = intersection(boxes, others)
    return _share(shared, jnp.broadcast_to(area(others), shared.shape))


def thresholded_iou(boxes: ArrayLike, others: ArrayLike, *, iou_threshold: float) -> Array:
    """Returns 1 for each pair with an IoU above the threshold, otherwise 0."""
    return (iou(boxes, others) > iou_threshold).astype(jnp.float32)


def neg_sq_dist(boxes: ArrayLike, others: ArrayLike) -> Array:
    """Returns minus the squared distance of each pair, as if a box were a point of four numbers."""
    difference = jnp.asarray(boxes, jnp.float32) - jnp.asarray(others, jnp.float32)
    return -jnp.sum(difference * difference, axis=-1)


def giou(boxes: ArrayLike, others: ArrayLike) -> Array:
    """Returns generalised IoU of each pair, in -1..1 (arXiv:1902.09630).

    From the IoU it takes off the part of the smallest enclosing box that neither covers.
    """
    shared = intersection(boxes, others)
    union = area(boxes) + area(others) - shared
    ymin, xmin, ymax, xmax = _corners(boxes)
    other_ymin, other_xmin, other_ymax, other_xmax = _corners(others)
    height = jnp.maximum(ymax, other_ymax) - jnp.minimum(ymin, other_ymin)
    width = jnp.maximum(xmax, other_xmax) - jnp.minimum(xmin, other_xmin)
    hull = height * width
    return _share(shared, union) - _share(hull - union, hull)


def _share(part: Array, whole: Array) -> Array:
    """Returns `part / whole`, 0 where `part` is 0 whatever `whole` is."""
    nothing = part == 0.0
    # The inner `where` keeps 0/0 out of the gradient, which the outer one alone would not.
    return jnp.where(nothing, 0.0, part / jnp.where(nothing, 1.0, whole))


def pairwise(function: PairFunction, boxes: ArrayLike, others: ArrayLike) -> Array:
    """Applies a function of pairs to every pair: `[..., N, 4]` and `[..., M, 4]` to `[..., N, M]`.

    Args:
        function: `iou`, `ioa` or another function of pairs that broadcasts.
        boxes: `[..., N, 4]`.
        others: `[..., M, 4]`.
    """
    boxes, others = jnp.asarray(boxes), jnp.asarray(others)
    return function(boxes[..., :, None, :], others[..., None, :, :])


def clip_to_window(boxes: ArrayLike, window: ArrayLike) -> Array:
    """Moves the edges that lie outside `window` onto its border.

    A box wholly outside becomes one without area.

    Args:
        boxes: `[..., 4]`.
        window: `[..., 4]`, broadcast against the boxes.
    """
    boxes, window = jnp.asarray(boxes, jnp.float32), jnp.asarray(window, jnp.float32)
    low, high = window[..., :2], window[..., 2:]
    return jnp.clip(
        boxes, jnp.concatenate([low, low], axis=-1), jnp.concatenate([high, high], axis=-1)
    )


def change_frame(boxes: ArrayLike, window: ArrayLike) -> Array:
    """Re-expresses boxes so that `window` becomes `[0, 0, 1, 1]`.

    Args:
        boxes: `[..., 4]`, in the frame that `window` is written in too.
        window: `[..., 4]`, broadcast against the boxes, with an area above 0.
    """
    boxes, window = jnp.asarray(boxes, jnp.float32), jnp.asarray(window, jnp.float32)
    origin, size = window[..., :2], window[..., 2:] - window[..., :2]
    origin, size = jnp.concatenate([origin] * 2, axis=-1), jnp.concatenate([size] * 2, axis=-1)
    return (boxes - origin) / size
