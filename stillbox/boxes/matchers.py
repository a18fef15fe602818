"""Matchers, which assign each anchor to a ground-truth box or to none, and their targets."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Float32, Int, Int32, Real

from stillbox.boxes.geometry import PairFunction, area, iou

BACKGROUND = -1
"""The anchor is assigned to no box: its class target is the background."""
IGNORED = -2
"""The anchor counts in no loss."""


_ROUNDING = 1e-5


class Frame(NamedTuple):
    """What the anchors of an image lie on."""

    size: tuple[int, int] = (1, 1)
    """Height and width of the network input, in pixels; boxes are normalised to it."""
    level_sizes: tuple[int, ...] = ()
    """Numbers of anchors of the feature maps, in their order; empty: there is one map."""


_NO_FRAME = Frame()


class Predicted(NamedTuple):
    """What a detector predicts for A anchors; no gradient flows through it."""

    boxes: Float[Array, "A 4"]
    scores: Float[Array, "A C"]
    """Probabilities of the classes, without the background's."""


class Rows(NamedTuple):
    """The rows of a matrix of similarities, N ground-truth boxes (at least 1) by A anchors.

    The whole matrix would take 245 MB for 8 images of 100 boxes and RetinaNet's 76725 anchors.
    """

    similarity: Callable[[Array], Array]
    """From the index of a row, an int32 scalar, to its similarities `[A]`."""
    valid: Bool[ArrayLike, "N"]
    """False for padding and for boxes without weight."""
    used: Int[ArrayLike, ""]
    """Rows from this one on are padding, which matches nothing; at most N."""
    boxes: Float[Array, "N 4"]
    anchors: Float[Array, "A 4"]
    frame: Frame
    classes: Int32[Array, "N"] | None = None
    """From 0; given with `predicted`."""
    predicted: Predicted | None = None
    """None: nothing has been predicted yet."""


def argmax_match(
    rows: Rows,
    *,
    matched_threshold: float = 0.5,
    unmatched_threshold: float = 0.5,
    ignore_thresholds: bool = False,
    negatives_lower_than_unmatched: bool = True,
    force_match_for_each_row: bool = False,
    keep_best_of_each_row: bool = False,
) -> Int32[Array, "A"]:
    """Assigns every anchor to its most similar ground-truth box, or to none.

    As `object_detection/matchers/argmax_matcher.py`. Among equals the lowest row wins, and with
    `force_match_for_each_row` the lowest anchor. Rows that are not valid compete like any other,
    but are never forced.

    Args:
        matched_threshold: at or above it an anchor is matched.
        unmatched_threshold: below it an anchor is background; in between it is ignored.
        ignore_thresholds: match every anchor for any similarity but minus infinity to all rows.
        negatives_lower_than_unmatched: false swaps background and ignored.
        force_match_for_each_row: assign each valid row's most similar anchor to that row, even if
            another row is more similar to the anchor. Of two rows with one most similar anchor the
            lower one gets it and the other none. A valid row with no similarity to any anchor gets
            anchor 0.
        keep_best_of_each_row: assign each valid row's most similar anchors, all of equal ones, to
            their own most similar row, even below the thresholds: `allow_low_quality_matches` in
            `torchvision/models/detection/_utils.py`. Rows that are similar to no anchor have none.

    Returns:
        The row, `BACKGROUND` or `IGNORED`.
    """
    best, most_similar_rows, best_anchors = _scan_rows(rows)
    matches = most_similar_rows
    if ignore_thresholds:
        matches = jnp.where(best > -jnp.inf, matches, BACKGROUND)
    else:
        low, middle = BACKGROUND, IGNORED
        if not negatives_lower_than_unmatched:
            low, middle = middle, low
        matches = jnp.where(best < matched_threshold, middle, matches)
        matches = jnp.where(best < unmatched_threshold, low, matches)
    if keep_best_of_each_row:
        matches = jnp.where(_is_best_of_a_row(rows), most_similar_rows, matches)
    if force_match_for_each_row:
        matches = _force_match(best_anchors, jnp.asarray(rows.valid, bool), matches)
    return matches


def bipartite_match(rows: Rows) -> Int32[Array, "A"]:
    """Assigns one anchor to every valid ground-truth box, the most similar pair first.

    The greedy matching of `object_detection/matchers/bipartite_matcher.py`: of all pairs of a valid
    row and an anchor that are both free, the most similar one is matched, until no pair is free,
    for any similarity. Among equals the lowest row wins, then the lowest anchor; in the original
    the heap decides. Matches are row indices; the original numbers rows as if the valid ones came
    first, and assigns anchors to wrong boxes if they do not. All similarities are held at once.

    Returns:
        The row or `BACKGROUND`.
    """
    valid_rows = jnp.asarray(rows.valid, bool)
    similarity = jax.vmap(rows.similarity)(jnp.arange(len(valid_rows)))
    count, anchors = similarity.shape
    # The other rows take at most N - 1 anchors, so that one of a row's N best is always free.
    values, columns = lax.top_k(similarity, min(count, anchors))
    width = values.shape[1]

    def assign(_: Int32[Array, ""], state: tuple[Array, Array]) -> tuple[Array, Array]:
        matches, free = state
        pair = jnp.argmax(free)
        row, column = pair // width, columns.reshape(-1)[pair]
        # With more rows than anchors no pair is free in the last rounds.
        is_free = free.reshape(-1)[pair] > -jnp.inf
        matches = matches.at[column].set(jnp.where(is_free, row, matches[column]).astype(jnp.int32))
        taken = (columns == column) | (jnp.arange(count)[:, None] == row)
        return matches, jnp.where(taken, -jnp.inf, free)

    start = (
        jnp.full(anchors, BACKGROUND, jnp.int32),
        jnp.where(valid_rows[:, None], values, -jnp.inf),
    )
    matches, _ = lax.fori_loop(0, valid_rows.sum(), assign, start)
    return matches


def _scan_rows(rows: Rows) -> tuple[Float[Array, "A"], Int32[Array, "A"], Int32[Array, "N"]]:
    """Returns each anchor's highest similarity and its row, and each row's best anchor.

    Among equals the lowest row and the lowest anchor win.
    """
    anchors = jax.eval_shape(rows.similarity, jnp.int32(0)).shape[0]

    def scan(row: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        best, matches, best_anchors = state
        similarity = rows.similarity(row)
        better = similarity > best
        return (
            jnp.where(better, similarity, best),
            jnp.where(better, row, matches),
            best_anchors.at[row].set(jnp.argmax(similarity).astype(jnp.int32)),
        )

    start = (
        jnp.full(anchors, -jnp.inf, jnp.float32),
        jnp.zeros(anchors, jnp.int32),
        jnp.zeros(len(jnp.asarray(rows.valid)), jnp.int32),
    )
    return lax.fori_loop(jnp.int32(0), jnp.asarray(rows.used, jnp.int32), scan, start)


def _is_best_of_a_row(rows: Rows) -> Bool[Array, "A"]:
    """Returns which anchors no other anchor exceeds in similarity to some valid row."""
    valid = jnp.asarray(rows.valid, bool)
    anchors = jax.eval_shape(rows.similarity, jnp.int32(0)).shape[0]

    def visit(row: Array, marked: Array) -> Array:
        similarity = rows.similarity(row)
        largest = similarity.max()
        # Similarities that are equal in whole pixels differ by the rounding of normalised boxes.
        best = similarity >= largest * (1.0 - _ROUNDING)
        return marked | (best & (largest > 0.0) & valid[row])

    used = jnp.asarray(rows.used, jnp.int32)
    start = jnp.zeros(anchors, bool)
    best: Array = lax.fori_loop(jnp.int32(0), used, visit, start)
    return best


def _force_match(
    best_anchors: Int32[Array, "N"], valid_rows: Bool[Array, "N"], matches: Int32[Array, "A"]
) -> Int32[Array, "A"]:
    """Overwrites the match of each valid row's most similar anchor with that row."""
    count, anchors = len(best_anchors), len(matches)
    rows = jnp.where(valid_rows, jnp.arange(count, dtype=jnp.int32), count)
    # The lowest row of each anchor; `count` for anchors without one.
    forced = jnp.full(anchors, count, jnp.int32).at[best_anchors].min(rows)
    return jnp.where(forced < count, forced, matches)


Match = Callable[[Rows], Array]
"""From similarities to matches `[A]`."""
Encode = Callable[[Array, Array], Array]
"""From boxes `[A, 4]` and anchors `[A, 4]` to deltas `[A, S]`."""


class Targets(NamedTuple):
    """Targets and weights of A anchors, or, with leading axes, of a batch or sample of them."""

    class_targets: Float32[Array, "*B A C"]
    """C counts the background, if it is a class."""
    class_weights: Float32[Array, "*B A"]
    box_targets: Float32[Array, "*B A S"]
    """Deltas of the box coder, 0 for anchors without a match."""
    box_weights: Float32[Array, "*B A"]
    """0 for anchors without a match."""
    matches: Int32[Array, "*B A"]
    """The ground-truth row, or `matchers.BACKGROUND` or `matchers.IGNORED`."""


def assign_targets(
    anchors: Real[ArrayLike, "A 4"],
    boxes: Real[ArrayLike, "N 4"],
    classes: Int[ArrayLike, "N"],
    weights: Real[ArrayLike, "N"],
    *,
    num_classes: int,
    background_class: bool,
    encode_background_as_zeros: bool,
    negative_class_weight: float,
    match: Match,
    encode: Encode,
    similarity: PairFunction = iou,
    frame: Frame = _NO_FRAME,
    used_rows: Int[ArrayLike, ""] | None = None,
) -> Targets:
    """Returns the targets of one image; with `jax.vmap`, of a batch.

    A row without weight takes part in the matching: anchors that are assigned to it get weight 0 in
    both losses, which excludes the regions of crowds and difficult boxes from the loss. Padding,
    which has neither weight nor area, matches nothing.

    Args:
        boxes: ground truth and padding, N at least 1.
        classes: from 0; a class of `num_classes` or more has a target of zeros.
        weights: 0 for padding and for ignored boxes.
        num_classes: foreground classes.
        background_class: class channel 0 is the background, the classes follow.
        encode_background_as_zeros: background anchors have a class target of zeros; otherwise
            channel 0 is 1, if it is the background.
        negative_class_weight: weight of background anchors in the classification loss.
        frame: of the anchors, for matchers that measure in pixels or by feature map.
        used_rows: rows from this one on are padding; None: any row may be a box.
    """
    anchors, boxes = jnp.asarray(anchors, jnp.float32), jnp.asarray(boxes, jnp.float32)
    classes, weights = jnp.asarray(classes, jnp.int32), jnp.asarray(weights, jnp.float32)
    matches = match(similarity_rows(anchors, boxes, weights, similarity, frame, used_rows))
    matched, rows = matches >= 0, jnp.maximum(matches, 0)
    row_weights = weights[rows]

    first = 1 if background_class else 0
    background = 0 if background_class and not encode_background_as_zeros else -1
    channels = jnp.where(matched, classes[rows] + first, background)
    deltas = encode(boxes[rows], anchors)
    unmatched_weights = jnp.where(matches == IGNORED, 0.0, negative_class_weight)
    return Targets(
        class_targets=jax.nn.one_hot(channels, num_classes + first, dtype=jnp.float32),
        class_weights=jnp.where(matched, row_weights, unmatched_weights),
        box_targets=jnp.where(matched[:, None], deltas, 0.0),
        box_weights=jnp.where(matched, row_weights, 0.0),
        matches=matches,
    )


def similarity_rows(
    anchors: Float[Array, "A 4"],
    boxes: Float[Array, "N 4"],
    weights: Float[Array, "N"],
    similarity: PairFunction,
    frame: Frame,
    used_rows: Int[ArrayLike, ""] | None,
) -> Rows:
    """Returns what a matcher compares; for the arguments see `assign_targets`."""
    padding = is_padding(boxes, weights)

    def row(index: Array) -> Array:
        return jnp.where(padding[index], -jnp.inf, similarity(boxes[index], anchors))

    used = len(boxes) if used_rows is None else used_rows
    return Rows(row, weights > 0, used, boxes, anchors, frame)


def is_padding(
    boxes: Real[ArrayLike, "*B N 4"], weights: Real[ArrayLike, "*B N"]
) -> Bool[Array, "*B N"]:
    """Returns which boxes have neither weight nor area."""
    return (jnp.asarray(weights) == 0.0) & (area(boxes) == 0.0)
