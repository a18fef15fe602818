"""From outputs of a network to boxes and scores: box coders and calibration.

Boxes and anchors are `[..., 4]` and broadcast. Decoded boxes are not clipped.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

_EPSILON = 1e-8


def encode_faster_rcnn(
    boxes: ArrayLike,
    anchors: ArrayLike,
    *,
    scales: tuple[float, float, float, float] = (10.0, 10.0, 5.0, 5.0),
    pixel: tuple[float, float] | None = None,
) -> Array:
    """Returns the codes `ty, tx, th, tw` of boxes, `[..., 4]` (arXiv:1506.01497).

    `ty` is the distance of the centres over the anchor's height, `th` the logarithm of the ratio
    of the heights, each times its scale. 1e-8 is added to all heights and widths first, so that
    a box without area has finite codes.

    Args:
        boxes: `[..., 4]`.
        anchors: `[..., 4]`.
        scales: factors of ty, tx, th and tw.
        pixel: height and width of a pixel in the boxes' unit, if edges are inclusive: boxes and
            anchors are then a pixel higher and wider.
    """
    centers, sizes = _center_form(boxes, pixel)
    anchor_centers, anchor_sizes = _center_form(anchors, pixel)
    sizes, anchor_sizes = sizes + _EPSILON, anchor_sizes + _EPSILON
    shifts = (centers - anchor_centers) / anchor_sizes
    stretches = jnp.log(sizes / anchor_sizes)
    return jnp.concatenate([shifts, stretches], axis=-1) * jnp.asarray(scales, jnp.float32)


def decode_faster_rcnn(
    codes: ArrayLike,
    anchors: ArrayLike,
    *,
    scales: tuple[float, float, float, float] = (10.0, 10.0, 5.0, 5.0),
    pixel: tuple[float, float] | None = None,
    max_log_ratio: float = 0.0,
) -> Array:
    """Returns the boxes `[..., 4]` of codes `[..., 4]`, `ty, tx, th, tw`.

    `max_log_ratio` limits the logarithms of the ratios of heights and widths; 0: no limit. The
    other arguments are those of `encode_faster_rcnn`.
    """
    codes = jnp.asarray(codes, jnp.float32) / jnp.asarray(scales, jnp.float32)
    anchor_centers, anchor_sizes = _center_form(anchors, pixel)
    centers = codes[..., :2] * anchor_sizes + anchor_centers
    stretches = codes[..., 2:]
    if max_log_ratio:
        stretches = jnp.minimum(stretches, max_log_ratio)
    half = jnp.exp(stretches) * anchor_sizes / 2.0
    low, high = centers - half, centers + half
    if pixel is not None:
        high = high - jnp.asarray(pixel, jnp.float32)
    return jnp.concatenate([low, high], axis=-1)


def encode_square(
    boxes: ArrayLike, anchors: ArrayLike, *, scales: tuple[float, float, float]
) -> Array:
    """Returns the codes `ty, tx, tl` of boxes, `[..., 3]`, which keep the area, not the shape.

    Box and anchor are replaced by the squares of their area. `ty` is the distance of the centres
    over the anchor's side, `tl` the logarithm of the ratio of the sides, each times its scale; 1e-8
    is added to both sides first.
    """
    centers, sizes = _center_form(boxes)
    anchor_centers, anchor_sizes = _center_form(anchors)
    side, anchor_side = _square_side(sizes) + _EPSILON, _square_side(anchor_sizes) + _EPSILON
    shifts = (centers - anchor_centers) / anchor_side
    codes = jnp.concatenate([shifts, jnp.log(side / anchor_side)], axis=-1)
    return codes * jnp.asarray(scales, jnp.float32)


def decode_square(
    codes: ArrayLike, anchors: ArrayLike, *, scales: tuple[float, float, float]
) -> Array:
    """Returns the square boxes `[..., 4]` of codes `[..., 3]`."""
    codes = jnp.asarray(codes, jnp.float32) / jnp.asarray(scales, jnp.float32)
    anchor_centers, anchor_sizes = _center_form(anchors)
    anchor_side = _square_side(anchor_sizes)
    centers = codes[..., :2] * anchor_side + anchor_centers
    half = jnp.exp(codes[..., 2:]) * anchor_side / 2.0
    return jnp.concatenate([centers - half, centers + half], axis=-1)


def encode_mean_stddev(boxes: ArrayLike, anchors: ArrayLike, *, stddev: float) -> Array:
    """Returns the distances of the four edges from the anchor's, over `stddev`: `[..., 4]`."""
    difference = jnp.asarray(boxes, jnp.float32) - jnp.asarray(anchors, jnp.float32)
    return difference / stddev


def decode_mean_stddev(codes: ArrayLike, anchors: ArrayLike, *, stddev: float) -> Array:
    """Returns the boxes `[..., 4]` of codes `[..., 4]`."""
    return jnp.asarray(codes, jnp.float32) * stddev + jnp.asarray(anchors, jnp.float32)


def _center_form(boxes: ArrayLike, pixel: tuple[float, float] | None = None) -> tuple[Array, Array]:
    """Returns centres `[..., 2]` and heights and widths `[..., 2]`; `pixel` is added to these."""
    boxes = jnp.asarray(boxes, jnp.float32)
    low, sizes = boxes[..., :2], boxes[..., 2:] - boxes[..., :2]
    if pixel is not None:
        sizes = sizes + jnp.asarray(pixel, jnp.float32)
    return low + sizes / 2.0, sizes


def _square_side(sizes: Array) -> Array:
    """Returns the side `[..., 1]` of the square with the area of sizes `[..., 2]`."""
    return jnp.sqrt(jnp.prod(sizes, axis=-1, keepdims=True))


def curve_scores(scores: ArrayLike, *, inputs: ArrayLike, outputs: ArrayLike) -> Array:
    """Interpolates scores `[...]` linearly between points; constant beyond the outer points.

    `inputs` `[P]` are rising, `outputs` `[P]` are the calibrated scores there.
    """
    return jnp.interp(
        jnp.asarray(scores, jnp.float32),
        jnp.asarray(inputs, jnp.float32),
        jnp.asarray(outputs, jnp.float32),
    )


def class_curve_scores(
    scores: ArrayLike, *, slots: ArrayLike, inputs: ArrayLike, outputs: ArrayLike
) -> Array:
    """Interpolates the scores `[..., C]` of distinct `slots` `[S]` int, each by its own curve.

    Args:
        scores: `[..., C]`.
        slots: `[S]`; other slots are not changed.
        inputs: `[S, P]`, rising in each row; shorter curves repeat their last point.
        outputs: `[S, P]`.
    """
    scores, slots = jnp.asarray(scores, jnp.float32), jnp.asarray(slots)
    inputs, outputs = jnp.asarray(inputs, jnp.float32), jnp.asarray(outputs, jnp.float32)
    by_slot = jax.vmap(jnp.interp, in_axes=(-1, 0, 0), out_axes=-1)
    return scores.at[..., slots].set(by_slot(scores[..., slots], inputs, outputs))


def platt_scores(scores: ArrayLike, *, a: ArrayLike, b: ArrayLike) -> Array:
    """Returns `1 / (1 + exp(a score + b))`, Platt's scaling, of `[..., C]`; a, b: `[]` or `[C]`."""
    return jax.nn.sigmoid(-(jnp.asarray(scores, jnp.float32) * a + b))


def class_platt_scores(scores: ArrayLike, *, slots: ArrayLike, a: ArrayLike, b: ArrayLike) -> Array:
    """Applies Platt's scaling with `a` and `b` `[S]` to distinct `slots` `[S]` of `[..., C]`."""
    scores, slots = jnp.asarray(scores, jnp.float32), jnp.asarray(slots)
    a, b = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
    return scores.at[..., slots].set(platt_scores(scores[..., slots], a=a, b=b))
