"""From outputs of a network to boxes and scores: box coders and calibration.

Boxes, anchors and deltas broadcast. Decoded boxes are not clipped.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Real

from stillbox.boxes import distributions

_EPSILON = 1e-8

Coding = Callable[[ArrayLike, ArrayLike], Array]


class BoxCodec(NamedTuple):
    """Encodes boxes relative to their anchors, and decodes them."""

    encode: Coding
    """From boxes `[..., 4]` and anchors `[..., 4]` to deltas `[..., code_size]`; to the means
    `[..., 4]` where codes are distributions."""
    decode: Coding
    """From deltas `[..., code_size]` and anchors `[..., 4]` to boxes `[..., 4]`."""


def encode_faster_rcnn(
    boxes: Real[ArrayLike, "*#B 4"],
    anchors: Real[ArrayLike, "*#B 4"],
    *,
    scales: tuple[float, float, float, float] = (10.0, 10.0, 5.0, 5.0),
    pixel: tuple[float, float] | None = None,
) -> Float[Array, "*B 4"]:
    """Returns the deltas `ty, tx, th, tw` of boxes (arXiv:1506.01497).

    `ty` is the distance of the centres over the anchor's height, `th` the logarithm of the ratio
    of the heights, each times its scale. 1e-8 is added to all heights and widths first: a box
    without area has finite deltas.

    Args:
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
    deltas: Real[ArrayLike, "*#B 4"],
    anchors: Real[ArrayLike, "*#B 4"],
    *,
    scales: tuple[float, float, float, float] = (10.0, 10.0, 5.0, 5.0),
    pixel: tuple[float, float] | None = None,
    max_log_ratio: float = 0.0,
) -> Float[Array, "*B 4"]:
    """Returns the boxes of the deltas `ty, tx, th, tw`.

    `max_log_ratio` limits the logarithms of the ratios of heights and widths; 0: no limit. For the
    other arguments see `encode_faster_rcnn`.
    """
    deltas = jnp.asarray(deltas, jnp.float32) / jnp.asarray(scales, jnp.float32)
    anchor_centers, anchor_sizes = _center_form(anchors, pixel)
    centers = deltas[..., :2] * anchor_sizes + anchor_centers
    stretches = deltas[..., 2:]
    if max_log_ratio:
        stretches = jnp.minimum(stretches, max_log_ratio)
    half = jnp.exp(stretches) * anchor_sizes / 2.0
    low, high = centers - half, centers + half
    if pixel is not None:
        high = high - jnp.asarray(pixel, jnp.float32)
    return jnp.concatenate([low, high], axis=-1)


def encode_square(
    boxes: Real[ArrayLike, "*#B 4"],
    anchors: Real[ArrayLike, "*#B 4"],
    *,
    scales: tuple[float, float, float],
) -> Float[Array, "*B 3"]:
    """Returns the deltas `ty, tx, tl` of boxes, which keep the area, not the shape.

    Box and anchor are replaced by the squares of their area. `ty` is the distance of the centres
    over the anchor's side, `tl` the logarithm of the ratio of the sides, each times its scale; 1e-8
    is added to both sides first.
    """
    centers, sizes = _center_form(boxes)
    anchor_centers, anchor_sizes = _center_form(anchors)
    side, anchor_side = _square_side(sizes) + _EPSILON, _square_side(anchor_sizes) + _EPSILON
    shifts = (centers - anchor_centers) / anchor_side
    deltas = jnp.concatenate([shifts, jnp.log(side / anchor_side)], axis=-1)
    return deltas * jnp.asarray(scales, jnp.float32)


def decode_square(
    deltas: Real[ArrayLike, "*#B 3"],
    anchors: Real[ArrayLike, "*#B 4"],
    *,
    scales: tuple[float, float, float],
) -> Float[Array, "*B 4"]:
    """Returns square boxes."""
    deltas = jnp.asarray(deltas, jnp.float32) / jnp.asarray(scales, jnp.float32)
    anchor_centers, anchor_sizes = _center_form(anchors)
    anchor_side = _square_side(anchor_sizes)
    centers = deltas[..., :2] * anchor_side + anchor_centers
    half = jnp.exp(deltas[..., 2:]) * anchor_side / 2.0
    return jnp.concatenate([centers - half, centers + half], axis=-1)


def encode_mean_stddev(
    boxes: Real[ArrayLike, "*#B 4"], anchors: Real[ArrayLike, "*#B 4"], *, stddev: float
) -> Float[Array, "*B 4"]:
    """Returns the distances of the four edges from the anchor's, over `stddev`."""
    difference = jnp.asarray(boxes, jnp.float32) - jnp.asarray(anchors, jnp.float32)
    return difference / stddev


def decode_mean_stddev(
    deltas: Real[ArrayLike, "*#B 4"], anchors: Real[ArrayLike, "*#B 4"], *, stddev: float
) -> Float[Array, "*B 4"]:
    """Returns the boxes of deltas."""
    return jnp.asarray(deltas, jnp.float32) * stddev + jnp.asarray(anchors, jnp.float32)


def encode_distances(
    boxes: Real[ArrayLike, "*#B 4"],
    anchors: Real[ArrayLike, "*#B 4"],
    *,
    units: float,
    longest: float | None = None,
) -> Float[Array, "*B 4"]:
    """Returns the distances of the four edges from the anchor's centre (arXiv:1904.01355).

    Args:
        units: of distance in the height and width of an anchor.
        longest: see `distributions.encode_distances`.
    """
    centers, sizes = _center_form(anchors)
    unit = jnp.tile(sizes / units, 2)
    points = centers / unit[..., :2]
    boxes = jnp.asarray(boxes, jnp.float32) / unit
    return distributions.encode_distances(boxes, points, longest=longest)


def decode_distances(
    distances: Real[ArrayLike, "*#B 4"], anchors: Real[ArrayLike, "*#B 4"], *, units: float
) -> Float[Array, "*B 4"]:
    """Returns the boxes of distances in units of the anchor; see `encode_distances`."""
    centers, sizes = _center_form(anchors)
    scaled = jnp.asarray(distances, jnp.float32) * jnp.tile(sizes / units, 2)
    return distributions.decode_distances(scaled, centers)


def _center_form(
    boxes: Real[ArrayLike, "*B 4"], pixel: tuple[float, float] | None = None
) -> tuple[Float[Array, "*B 2"], Float[Array, "*B 2"]]:
    """Returns centres, and heights and widths plus a pixel."""
    boxes = jnp.asarray(boxes, jnp.float32)
    low, sizes = boxes[..., :2], boxes[..., 2:] - boxes[..., :2]
    if pixel is not None:
        sizes = sizes + jnp.asarray(pixel, jnp.float32)
    return low + sizes / 2.0, sizes


def _square_side(sizes: Float[Array, "*B 2"]) -> Float[Array, "*B 1"]:
    """Returns the side of the square of the same area."""
    return jnp.sqrt(jnp.prod(sizes, axis=-1, keepdims=True))


def curve_scores(
    scores: Real[ArrayLike, "*B"],
    *,
    inputs: Real[ArrayLike, "P"],
    outputs: Real[ArrayLike, "P"],
) -> Float[Array, "*B"]:
    """Interpolates scores linearly between points; constant beyond the outer points.

    Args:
        inputs: rising scores.
        outputs: the calibrated scores there.
    """
    return jnp.interp(
        jnp.asarray(scores, jnp.float32),
        jnp.asarray(inputs, jnp.float32),
        jnp.asarray(outputs, jnp.float32),
    )


def class_curve_scores(
    scores: Real[ArrayLike, "*B C"],
    *,
    class_channels: Int[ArrayLike, "S"],
    inputs: Real[ArrayLike, "S P"],
    outputs: Real[ArrayLike, "S P"],
) -> Float[Array, "*B C"]:
    """Interpolates the scores of some classes, each by its own curve.

    Args:
        class_channels: distinct channels; others are not changed.
        inputs: rising in each row; shorter curves repeat their last point.
        outputs: the calibrated scores there.
    """
    scores, channels = jnp.asarray(scores, jnp.float32), jnp.asarray(class_channels)
    inputs, outputs = jnp.asarray(inputs, jnp.float32), jnp.asarray(outputs, jnp.float32)
    by_class = jax.vmap(jnp.interp, in_axes=(-1, 0, 0), out_axes=-1)
    return scores.at[..., channels].set(by_class(scores[..., channels], inputs, outputs))


def platt_scores(
    scores: Real[ArrayLike, "*B C"], *, a: Real[ArrayLike, "*#C"], b: Real[ArrayLike, "*#C"]
) -> Float[Array, "*B C"]:
    """Returns `1 / (1 + exp(a score + b))`, Platt's scaling."""
    return jax.nn.sigmoid(-(jnp.asarray(scores, jnp.float32) * a + b))


def class_platt_scores(
    scores: Real[ArrayLike, "*B C"],
    *,
    class_channels: Int[ArrayLike, "S"],
    a: Real[ArrayLike, "S"],
    b: Real[ArrayLike, "S"],
) -> Float[Array, "*B C"]:
    """Applies Platt's scaling with `a` and `b` to distinct channels."""
    scores, channels = jnp.asarray(scores, jnp.float32), jnp.asarray(class_channels)
    a, b = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
    return scores.at[..., channels].set(platt_scores(scores[..., channels], a=a, b=b))
