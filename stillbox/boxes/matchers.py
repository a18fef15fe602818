"""Matchers: which ground truth box, if any, an anchor answers for."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

BACKGROUND = -1
"""The anchor answers for no box: its class target is the background."""
IGNORED = -2
"""The anchor counts in no loss."""


class Rows(NamedTuple):
    """The rows of a matrix of similarities, N ground truth boxes (at least 1) by A anchors.

    The matrix itself would take 245 MB for 8 images of 100 boxes and RetinaNet's 76725 anchors.
    """

    similarity: Callable[[Array], Array]
    """From the index of a row, an int32 scalar, to its similarities `[A]`."""
    valid: ArrayLike
    """`[N]` bool, false for padding and for boxes without weight."""
    used: ArrayLike
    """Rows from this one on are padding, which resembles nothing; an int32 scalar, at most N."""


def argmax_match(
    rows: Rows,
    *,
    matched_threshold: float = 0.5,
    unmatched_threshold: float = 0.5,
    ignore_thresholds: bool = False,
    negatives_lower_than_unmatched: bool = True,
    force_match_for_each_row: bool = False,
) -> Array:
    """Gives every anchor its most similar ground truth box, or none (fact sheet 3.5).

    Among equals the lowest row wins, and with `force_match_for_each_row` the lowest anchor. Rows
    that are not valid compete like any other; they are only never forced.

    Args:
        rows: of the matrix of similarities.
        matched_threshold: at or above it an anchor is matched.
        unmatched_threshold: below it an anchor is background; in between it is ignored.
        ignore_thresholds: match every anchor, whatever its similarity, unless that is minus
            infinity to all rows.
        negatives_lower_than_unmatched: false swaps background and ignored.
        force_match_for_each_row: each valid row takes its most similar anchor, even from a row
            that suits the anchor better. Where two rows want one anchor the lower row gets it and
            the other none. A valid row that resembles no anchor takes anchor 0.

    Returns:
        `[A]` int32: the row, `BACKGROUND` or `IGNORED`.

    Raises:
        ValueError: the thresholds contradict each other.
    """
    _check_thresholds(matched_threshold, unmatched_threshold, negatives_lower_than_unmatched)
    best, matches, favorites = _look_at_rows(rows)
    if ignore_thresholds:
        matches = jnp.where(best > -jnp.inf, matches, BACKGROUND)
    else:
        low, middle = BACKGROUND, IGNORED
        if not negatives_lower_than_unmatched:
            low, middle = middle, low
        matches = jnp.where(best < matched_threshold, middle, matches)
        matches = jnp.where(best < unmatched_threshold, low, matches)
    if force_match_for_each_row:
        matches = _force_match(favorites, jnp.asarray(rows.valid, bool), matches)
    return matches


def bipartite_match(rows: Rows) -> Array:
    """Gives every valid ground truth box one anchor of its own, the most similar pair first.

    The greedy matching of the original (fact sheet 3.5): of all pairs of a valid row and an anchor
    that are both still free, the most similar one is joined, until no such pair is left, however
    little they resemble each other. Among equals the lowest row wins, then the lowest anchor; the
    original leaves that to its heap. Matches are rows as they stand; the original numbers them as
    if the valid rows stood first, and gives an anchor to the wrong box where they do not. All
    similarities are held at once.

    Args:
        rows: of the matrix of similarities.

    Returns:
        `[A]` int32: the row or `BACKGROUND`.
    """
    valid_rows = jnp.asarray(rows.valid, bool)
    similarity = jax.vmap(rows.similarity)(jnp.arange(len(valid_rows)))
    count, anchors = similarity.shape
    # The other rows take at most N - 1 anchors, so that one of a row's N best is always left.
    values, columns = lax.top_k(similarity, min(count, anchors))
    width = values.shape[1]

    def join(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        matches, left = state
        pair = jnp.argmax(left)
        row, column = pair // width, columns.reshape(-1)[pair]
        # With more rows than anchors the last rounds find nothing left.
        found = left.reshape(-1)[pair] > -jnp.inf
        matches = matches.at[column].set(jnp.where(found, row, matches[column]).astype(jnp.int32))
        taken = (columns == column) | (jnp.arange(count)[:, None] == row)
        return matches, jnp.where(taken, -jnp.inf, left)

    start = (
        jnp.full(anchors, BACKGROUND, jnp.int32),
        jnp.where(valid_rows[:, None], values, -jnp.inf),
    )
    matches, _ = lax.fori_loop(0, valid_rows.sum(), join, start)
    return matches


def _look_at_rows(rows: Rows) -> tuple[Array, Array, Array]:
    """Looks at one row after the other.

    Returns:
        The highest similarity of each anchor `[A]` and the row that has it `[A]`, the lowest among
        equals; the anchor that is most similar to each row `[N]`, the lowest among equals.
    """
    anchors = jax.eval_shape(rows.similarity, jnp.int32(0)).shape[0]

    def look(row: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        best, matches, favorites = state
        similarity = rows.similarity(row)
        # Only a later row that is better takes an anchor: among equals the lowest row wins.
        better = similarity > best
        return (
            jnp.where(better, similarity, best),
            jnp.where(better, row, matches),
            favorites.at[row].set(jnp.argmax(similarity).astype(jnp.int32)),
        )

    start = (
        jnp.full(anchors, -jnp.inf, jnp.float32),
        jnp.zeros(anchors, jnp.int32),
        jnp.zeros(len(jnp.asarray(rows.valid)), jnp.int32),
    )
    return lax.fori_loop(jnp.int32(0), jnp.asarray(rows.used, jnp.int32), look, start)


def _force_match(favorites: Array, valid_rows: Array, matches: Array) -> Array:
    """Overwrites the match of each valid row's most similar anchor with that row."""
    count, anchors = len(favorites), len(matches)
    claims = jnp.where(valid_rows, jnp.arange(count, dtype=jnp.int32), count)
    # A minimum says at once who claims first and whether anybody does.
    claimant = jnp.full(anchors, count, jnp.int32).at[favorites].min(claims)
    return jnp.where(claimant < count, claimant, matches)


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
