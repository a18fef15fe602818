"""Matchers: the ground-truth box, if any, that each anchor is assigned to."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

BACKGROUND = -1
"""The anchor is assigned to no box: its class target is the background."""
IGNORED = -2
"""The anchor counts in no loss."""


class Rows(NamedTuple):
    """The rows of a matrix of similarities, N ground-truth boxes (at least 1) by A anchors.

    The whole matrix would take 245 MB for 8 images of 100 boxes and RetinaNet's 76725 anchors.
    """

    similarity: Callable[[Array], Array]
    """From the index of a row, an int32 scalar, to its similarities `[A]`."""
    valid: ArrayLike
    """`[N]` bool, false for padding and for boxes without weight."""
    used: ArrayLike
    """Rows from this one on are padding, which matches nothing; an int32 scalar, at most N."""


def argmax_match(
    rows: Rows,
    *,
    matched_threshold: float = 0.5,
    unmatched_threshold: float = 0.5,
    ignore_thresholds: bool = False,
    negatives_lower_than_unmatched: bool = True,
    force_match_for_each_row: bool = False,
) -> Array:
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

    Returns:
        `[A]` int32: the row, `BACKGROUND` or `IGNORED`.

    Raises:
        ValueError: the thresholds contradict each other.
    """
    _check_thresholds(matched_threshold, unmatched_threshold, negatives_lower_than_unmatched)
    best, matches, best_anchors = _scan_rows(rows)
    if ignore_thresholds:
        matches = jnp.where(best > -jnp.inf, matches, BACKGROUND)
    else:
        low, middle = BACKGROUND, IGNORED
        if not negatives_lower_than_unmatched:
            low, middle = middle, low
        matches = jnp.where(best < matched_threshold, middle, matches)
        matches = jnp.where(best < unmatched_threshold, low, matches)
    if force_match_for_each_row:
        matches = _force_match(best_anchors, jnp.asarray(rows.valid, bool), matches)
    return matches


def bipartite_match(rows: Rows) -> Array:
    """Assigns one anchor to every valid ground-truth box, the most similar pair first.

    The greedy matching of `object_detection/matchers/bipartite_matcher.py`: of all pairs of a valid
    row and an anchor that are both free, the most similar one is matched, until no pair is free,
    for any similarity. Among equals the lowest row wins, then the lowest anchor; in the original
    the heap decides. Matches are row indices; the original numbers rows as if the valid ones came
    first, and assigns anchors to wrong boxes if they do not. All similarities are held at once.

    Returns:
        `[A]` int32: the row or `BACKGROUND`.
    """
    valid_rows = jnp.asarray(rows.valid, bool)
    similarity = jax.vmap(rows.similarity)(jnp.arange(len(valid_rows)))
    count, anchors = similarity.shape
    # The other rows take at most N - 1 anchors, so that one of a row's N best is always free.
    values, columns = lax.top_k(similarity, min(count, anchors))
    width = values.shape[1]

    def assign(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        matches, free = state
        pair = jnp.argmax(free)
        row, column = pair // width, columns.reshape(-1)[pair]
        # With more rows than anchors no pair is free in the last rounds.
        found = free.reshape(-1)[pair] > -jnp.inf
        matches = matches.at[column].set(jnp.where(found, row, matches[column]).astype(jnp.int32))
        taken = (columns == column) | (jnp.arange(count)[:, None] == row)
        return matches, jnp.where(taken, -jnp.inf, free)

    start = (
        jnp.full(anchors, BACKGROUND, jnp.int32),
        jnp.where(valid_rows[:, None], values, -jnp.inf),
    )
    matches, _ = lax.fori_loop(0, valid_rows.sum(), assign, start)
    return matches


def _scan_rows(rows: Rows) -> tuple[Array, Array, Array]:
    """Returns each anchor's highest similarity `[A]` and its row `[A]`, and each row's best anchor.

    The latter is `[N]`. Among equals the lowest row and the lowest anchor win.
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


def _force_match(best_anchors: Array, valid_rows: Array, matches: Array) -> Array:
    """Overwrites the match of each valid row's most similar anchor with that row."""
    count, anchors = len(best_anchors), len(matches)
    rows = jnp.where(valid_rows, jnp.arange(count, dtype=jnp.int32), count)
    # The lowest row of each anchor; `count` for anchors without one.
    forced = jnp.full(anchors, count, jnp.int32).at[best_anchors].min(rows)
    return jnp.where(forced < count, forced, matches)


def _check_thresholds(
    matched_threshold: float, unmatched_threshold: float, negatives_lower_than_unmatched: bool
) -> None:
    if unmatched_threshold > matched_threshold:
        raise ValueError(
            f"unmatched_threshold {unmatched_threshold} is above matched_threshold "
            f"{matched_threshold}"
        )
    if not negatives_lower_than_unmatched and unmatched_threshold == matched_threshold:
        raise ValueError(
            "with negatives_lower_than_unmatched false the background lies between the two "
            f"thresholds, and both are {matched_threshold}: no anchor would be background"
        )
