"""Matchers with thresholds that follow from the boxes: ATSS, and task-aligned assignment.

Both visit one ground-truth box after the other and keep a few numbers of each anchor: memory does
not grow with the number of boxes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int32

from stillbox.boxes.distributions import encode_distances
from stillbox.boxes.geometry import iou
from stillbox.boxes.matchers import BACKGROUND, Rows

# The original's, in pixels: a centre on the edge of a box is outside.
_INSIDE = 0.01


class _Best(NamedTuple):
    """For each anchor, what the best box so far gave it."""

    overlap: Float32[Array, "A"]
    """IoU with the box; -1 without one."""
    row: Int32[Array, "A"]


def atss_match(rows: Rows, *, candidates: int = 9) -> Int32[Array, "A"]:
    """Assigns anchors to boxes by a threshold of each box (ATSS, arXiv:1912.02424, algorithm 1).

    Candidates of a box are the anchors of each feature map with the nearest centres. The threshold
    is the mean plus the standard deviation (of a sample) of the candidates' similarities. A
    candidate is assigned if its similarity reaches the threshold and its centre lies inside the
    box. Of several boxes an anchor gets the one with the largest similarity, among equals the
    lowest row. A box may get no anchor, and a box without weight gets none.

    As `mmdet/models/task_modules/assigners/atss_assigner.py`; among equal distances the lowest
    anchor is nearest, where the original's choice is not defined.

    Args:
        rows: with similarities that are IoUs.
        candidates: of each feature map, if it has as many.

    Returns:
        The row, or `BACKGROUND`.
    """
    pixels = jnp.asarray(rows.frame.size * 2, jnp.float32)
    boxes, centers = rows.boxes * pixels, _centers(rows.anchors * pixels)
    level_sizes = rows.frame.level_sizes or (len(centers),)
    starts = np.cumsum([0, *level_sizes])
    valid = jnp.asarray(rows.valid, bool)

    def visit(row: Array, best: _Best) -> _Best:
        box = boxes[row]
        distance = jnp.sum((centers - _centers(box)) ** 2, axis=-1)
        nearest = [
            start + lax.top_k(-distance[start : start + size], min(candidates, size))[1]
            for start, size in zip(starts[:-1], level_sizes, strict=True)
        ]
        chosen = jnp.concatenate(nearest)
        overlap = rows.similarity(row)[chosen]
        threshold = jnp.mean(overlap) + jnp.std(overlap, ddof=1)
        positive = (overlap >= threshold) & _is_inside(centers[chosen], box) & valid[row]
        return _offer(best, row, chosen, overlap, positive)

    used = jnp.asarray(rows.used, jnp.int32)
    return lax.fori_loop(jnp.int32(0), used, visit, _nothing(len(centers))).row


def task_aligned_match(
    rows: Rows, *, alpha: float = 1.0, beta: float = 6.0, candidates: int = 13
) -> Int32[Array, "A"]:
    """Assigns anchors to boxes by what the network predicts there (TOOD, arXiv:2108.07755, 3.2).

    The alignment of an anchor with a box is `s^alpha u^beta` of the probability s of the box's
    class and the IoU u of the predicted box. Candidates of a box are the anchors with the largest
    alignments, over all levels; those with an alignment above 0 and their centre inside the box are
    assigned to it. Of several boxes an anchor gets the one with the largest IoU, among equals the
    lowest row. A box without weight gets none.

    As `mmdet/models/task_modules/assigners/task_aligned_assigner.py`.

    Args:
        rows: with predictions and classes.
        alpha: exponent of the probability.
        beta: exponent of the IoU.
        candidates: of each box.

    Returns:
        The row, or `BACKGROUND`.
    """
    predicted, classes = rows.predicted, rows.classes
    assert predicted is not None and classes is not None
    pixels = jnp.asarray(rows.frame.size * 2, jnp.float32)
    boxes, centers = rows.boxes * pixels, _centers(rows.anchors * pixels)
    valid = jnp.asarray(rows.valid, bool)

    def visit(row: Array, best: _Best) -> _Best:
        overlap = iou(rows.boxes[row], predicted.boxes)
        score = jnp.take(predicted.scores, classes[row], axis=1, mode="fill", fill_value=0.0)
        alignment, chosen = lax.top_k(score**alpha * overlap**beta, min(candidates, len(centers)))
        inside = _is_inside(centers[chosen], boxes[row])
        positive = (alignment > 0.0) & inside & valid[row]
        return _offer(best, row, chosen, overlap[chosen], positive)

    used = jnp.asarray(rows.used, jnp.int32)
    return lax.fori_loop(jnp.int32(0), used, visit, _nothing(len(centers))).row


def alignment_targets(
    matches: Int32[Array, "A"],
    scores: Float[Array, "A"],
    overlaps: Float[Array, "A"],
    boxes: int,
    *,
    alpha: float,
    beta: float,
) -> Float32[Array, "A"]:
    """Returns the alignments of matched anchors, the largest of each box set to its largest IoU.

    As `TOODHead._get_targets_single` in `mmdet/models/dense_heads/tood_head.py`.

    Args:
        matches: rows of the boxes; other anchors have a target of 0.
        scores: predicted probabilities of the boxes' classes.
        overlaps: IoU of each predicted box with the anchor's box.
        boxes: number of rows.
        alpha: exponent of the probability.
        beta: exponent of the IoU.
    """
    matched = matches >= 0
    alignment = jnp.where(matched, scores**alpha * overlaps**beta, 0.0)
    rows = jnp.where(matched, matches, boxes)
    largest = jnp.zeros((2, boxes + 1)).at[0, rows].max(alignment)
    largest = largest.at[1, rows].max(jnp.where(matched, overlaps, 0.0))
    return alignment / (largest[0, rows] + 1e-7) * largest[1, rows]


def _centers(boxes: Float[Array, "*B 4"]) -> Float[Array, "*B 2"]:
    return (boxes[..., :2] + boxes[..., 2:]) / 2.0


def _is_inside(centers: Float[Array, "K 2"], box: Float[Array, "4"]) -> Bool[Array, "K"]:
    return encode_distances(box, centers).min(axis=-1) > _INSIDE


def _nothing(anchors: int) -> _Best:
    return _Best(
        overlap=jnp.full(anchors, -1.0),
        row=jnp.full(anchors, BACKGROUND, jnp.int32),
    )


def _offer(
    best: _Best,
    row: Int32[Array, ""],
    chosen: Int32[Array, "K"],
    overlap: Float32[Array, "K"],
    positive: Bool[Array, "K"],
) -> _Best:
    """Gives the positive anchors to a box, unless another box has a larger IoU with them."""
    better = positive & (overlap > best.overlap[chosen])
    # Anchors that are not better are written out of range, which drops them.
    place = jnp.where(better, chosen, len(best.row))
    return jax.tree.map(
        lambda kept, new: kept.at[place].set(new, mode="drop"),
        best,
        _Best(overlap, jnp.broadcast_to(row, chosen.shape).astype(jnp.int32)),
    )
