"""Areas, overlaps and frames of boxes, and the part of a feature map that belongs to an image.

Boxes are `[ymin, xmin, ymax, xmax]` in the last axis. Functions of two sets of boxes work pair by
pair and broadcast their leading axes; `pairwise` applies them to every pair of two lists.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Int32, Real

PairFunction = Callable[[ArrayLike, ArrayLike], Array]
"""A function of the pairs of two broadcast sets of boxes `[..., 4]`, with results `[...]`."""
# Keeps the angle of a box without height, and the angle's gradient, finite.
_LEAST_HEIGHT = 1e-7
Corners = tuple[Float[Array, "*B"], Float[Array, "*B"], Float[Array, "*B"], Float[Array, "*B"]]


def _corners(boxes: Real[ArrayLike, "*B 4"]) -> Corners:
    """Returns ymin, xmin, ymax, xmax."""
    boxes = jnp.asarray(boxes, jnp.float32)
    return boxes[..., 0], boxes[..., 1], boxes[..., 2], boxes[..., 3]


def area(boxes: Real[ArrayLike, "*B 4"]) -> Float[Array, "*B"]:
    """Returns height times width, which is negative if one of them is."""
    ymin, xmin, ymax, xmax = _corners(boxes)
    return (ymax - ymin) * (xmax - xmin)


def intersection(
    boxes: Real[ArrayLike, "*#B 4"], others: Real[ArrayLike, "*#B 4"]
) -> Float[Array, "*B"]:
    """Returns the common area of each pair, 0 if disjoint."""
    ymin, xmin, ymax, xmax = _corners(boxes)
    other_ymin, other_xmin, other_ymax, other_xmax = _corners(others)
    height = jnp.minimum(ymax, other_ymax) - jnp.maximum(ymin, other_ymin)
    width = jnp.minimum(xmax, other_xmax) - jnp.maximum(xmin, other_xmin)
    return jnp.maximum(height, 0.0) * jnp.maximum(width, 0.0)


def iou(boxes: Real[ArrayLike, "*#B 4"], others: Real[ArrayLike, "*#B 4"]) -> Float[Array, "*B"]:
    """Returns intersection over union of each pair.

    It is 0 if the intersection is 0. Padding boxes `[0, 0, 0, 0]`, with a union that may be 0 too,
    thus match nothing.
    """
    shared = intersection(boxes, others)
    return _share(shared, area(boxes) + area(others) - shared)


def ioa(boxes: Real[ArrayLike, "*#B 4"], others: Real[ArrayLike, "*#B 4"]) -> Float[Array, "*B"]:
    """Returns the intersection over the area of the second box.

    The original's matchers compare ground truth (first) with anchors (second) too.
    """
    shared = intersection(boxes, others)
    return _share(shared, jnp.broadcast_to(area(others), shared.shape))


def thresholded_iou(
    boxes: Real[ArrayLike, "*#B 4"], others: Real[ArrayLike, "*#B 4"], *, iou_threshold: float
) -> Float[Array, "*B"]:
    """Returns 1 for each pair with an IoU above the threshold, otherwise 0."""
    return (iou(boxes, others) > iou_threshold).astype(jnp.float32)


def neg_sq_dist(
    boxes: Real[ArrayLike, "*#B 4"], others: Real[ArrayLike, "*#B 4"]
) -> Float[Array, "*B"]:
    """Returns minus the squared distance of each pair, a box being a point of four numbers."""
    difference = jnp.asarray(boxes, jnp.float32) - jnp.asarray(others, jnp.float32)
    return -jnp.sum(difference * difference, axis=-1)


def giou(boxes: Real[ArrayLike, "*#B 4"], others: Real[ArrayLike, "*#B 4"]) -> Float[Array, "*B"]:
    """Returns generalised IoU of each pair, in -1..1 (arXiv:1902.09630).

    It is the IoU less the part of the smallest enclosing box that neither covers. The common area
    of boxes that only touch has no gradient.
    """
    shared = intersection(boxes, others)
    shared = jnp.where(shared > 0.0, shared, 0.0)
    union = area(boxes) + area(others) - shared
    height, width = _hull_sides(boxes, others)
    hull = height * width
    empty = hull == 0.0
    uncovered = jnp.where(empty, 0.0, (hull - union) / jnp.where(empty, 1.0, hull))
    return _share(shared, union) - uncovered


def diou(boxes: Real[ArrayLike, "*#B 4"], others: Real[ArrayLike, "*#B 4"]) -> Float[Array, "*B"]:
    """Returns distance-IoU of each pair, in -1..1 (arXiv:1911.08287).

    It is the IoU less the squared distance of the centres over the squared diagonal of the smallest
    enclosing box.
    """
    ymin, xmin, ymax, xmax = _corners(boxes)
    other_ymin, other_xmin, other_ymax, other_xmax = _corners(others)
    height, width = _hull_sides(boxes, others)
    rows = (ymin + ymax - other_ymin - other_ymax) / 2.0
    columns = (xmin + xmax - other_xmin - other_xmax) / 2.0
    return iou(boxes, others) - _share(rows**2 + columns**2, height**2 + width**2)


def ciou(boxes: Real[ArrayLike, "*#B 4"], others: Real[ArrayLike, "*#B 4"]) -> Float[Array, "*B"]:
    """Returns complete IoU of each pair, in -1..1 (arXiv:1911.08287).

    It is the distance-IoU less a term of the difference of the aspect ratios, which counts for
    pairs with an IoU above .5. No gradient flows through the weight of that term.
    """
    difference = _angle(others) - _angle(boxes)
    shape = 4.0 / jnp.pi**2 * difference * difference
    overlap = iou(boxes, others)
    weight = jnp.where(overlap > 0.5, _share(shape, 1.0 - overlap + shape), 0.0)
    return jnp.clip(diou(boxes, others) - lax.stop_gradient(weight) * shape, -1.0, 1.0)


def _hull_sides(
    boxes: Real[ArrayLike, "*#B 4"], others: Real[ArrayLike, "*#B 4"]
) -> tuple[Float[Array, "*B"], Float[Array, "*B"]]:
    """Returns height and width of the smallest box that encloses each pair."""
    ymin, xmin, ymax, xmax = _corners(boxes)
    other_ymin, other_xmin, other_ymax, other_xmax = _corners(others)
    height = jnp.maximum(ymax, other_ymax) - jnp.minimum(ymin, other_ymin)
    return height, jnp.maximum(xmax, other_xmax) - jnp.minimum(xmin, other_xmin)


def _angle(boxes: Real[ArrayLike, "*B 4"]) -> Float[Array, "*B"]:
    """Returns the angle of the diagonal, 90 degrees for a box without height."""
    ymin, xmin, ymax, xmax = _corners(boxes)
    return jnp.arctan((xmax - xmin) / (ymax - ymin + _LEAST_HEIGHT))


def _share(part: Float[Array, "*B"], whole: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Returns `part / whole`, 0 if `part` is 0, whatever `whole` is."""
    nothing = part == 0.0
    # The inner `where` keeps 0/0 out of the gradient, which the outer one alone would not.
    return jnp.where(nothing, 0.0, part / jnp.where(nothing, 1.0, whole))


def pairwise(
    function: PairFunction, boxes: Real[ArrayLike, "*B N 4"], others: Real[ArrayLike, "*#B M 4"]
) -> Float[Array, "*B N M"]:
    """Applies `function` to all pairs of two lists of boxes."""
    boxes, others = jnp.asarray(boxes), jnp.asarray(others)
    return function(boxes[..., :, None, :], others[..., None, :, :])


def clip_to_window(
    boxes: Real[ArrayLike, "*#B 4"], window: Real[ArrayLike, "*#B 4"]
) -> Float[Array, "*B 4"]:
    """Clips boxes to a window; boxes outside it lose their area."""
    boxes, window = jnp.asarray(boxes, jnp.float32), jnp.asarray(window, jnp.float32)
    low, high = window[..., :2], window[..., 2:]
    return jnp.clip(
        boxes, jnp.concatenate([low, low], axis=-1), jnp.concatenate([high, high], axis=-1)
    )


def change_frame(
    boxes: Real[ArrayLike, "*#B 4"], window: Real[ArrayLike, "*#B 4"]
) -> Float[Array, "*B 4"]:
    """Re-expresses boxes in a frame where the window is `[0, 0, 1, 1]`."""
    boxes, window = jnp.asarray(boxes, jnp.float32), jnp.asarray(window, jnp.float32)
    origin, size = window[..., :2], window[..., 2:] - window[..., :2]
    origin, size = jnp.concatenate([origin] * 2, axis=-1), jnp.concatenate([size] * 2, axis=-1)
    return (boxes - origin) / size


def stride_of(map_side: int, input_side: int) -> int:
    """Returns the stride, a power of two, from a side of the input to the same side of a map."""
    stride = 1
    while -(-input_side // stride) > map_side:
        stride *= 2
    return stride


def extents_on_map(
    sizes: Int[ArrayLike, "B 2"], map_shape: tuple[int, int], input_shape: tuple[int, int]
) -> Int32[Array, "B 2"]:
    """Returns the rows and columns of a map that images fill.

    A map of stride s of an unpadded image of n pixels has `ceil(n / s)` rows.

    Args:
        sizes: heights and widths of the images, in pixels of the network input.
        map_shape: height and width of the map of the padded input.
        input_shape: height and width of the padded input, in pixels.
    """
    strides = [stride_of(*sides) for sides in zip(map_shape, input_shape, strict=True)]
    return -(-jnp.asarray(sizes, jnp.int32) // jnp.asarray(strides, jnp.int32))
