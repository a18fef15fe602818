"""Matchers: which ground truth box, if any, an anchor answers for."""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

BACKGROUND = -1
"""The anchor answers for no box: its class target is the background."""
IGNORED = -2
"""The anchor counts in no loss."""


def argmax_match(
    similarity: ArrayLike,
    valid_rows: ArrayLike,
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
        similarity: `[N, A]`, of N ground truth boxes (at least 1, padding included) and A anchors.
        valid_rows: `[N]` bool, false for padding and for boxes without weight.
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
    similarity = jnp.asarray(similarity, jnp.float32)
    matches = jnp.argmax(similarity, axis=0).astype(jnp.int32)
    best = jnp.max(similarity, axis=0)
    if ignore_thresholds:
        matches = jnp.where(best > -jnp.inf, matches, BACKGROUND)
    else:
        low, middle = BACKGROUND, IGNORED
        if not negatives_lower_than_unmatched:
            low, middle = middle, low
        matches = jnp.where(best < matched_threshold, middle, matches)
        matches = jnp.where(best < unmatched_threshold, low, matches)
    if force_match_for_each_row:
        matches = _force_match(similarity, jnp.asarray(valid_rows, bool), matches)
    return matches


def bipartite_match(similarity: ArrayLike, valid_rows: ArrayLike) -> Array:
    """Gives every valid ground truth box one anchor of its own, the most similar pair first.

    The greedy matching of the original (fact sheet 3.5): of all pairs of a valid row and an anchor
    that are both still free, the most similar one is joined, until no such pair is left, however
    little they resemble each other. Among equals the lowest row wins, then the lowest anchor; the
    original leaves that to its heap. Matches are rows of `similarity`; the original numbers them as
    if the valid rows stood first, and gives an anchor to the wrong box where they do not.

    Args:
        similarity: `[N, A]`, of N ground truth boxes (at least 1, padding included) and A anchors.
        valid_rows: `[N]` bool, false for padding and for boxes without weight.

    Returns:
        `[A]` int32: the row or `BACKGROUND`.
    """
    similarity = jnp.asarray(similarity, jnp.float32)
    valid_rows = jnp.asarray(valid_rows, bool)
    rows, anchors = similarity.shape
    # The other rows take at most N - 1 anchors, so that one of a row's N best is always left.
    values, columns = lax.top_k(similarity, min(rows, anchors))
    width = values.shape[1]

    def join(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        matches, left = state
        pair = jnp.argmax(left)
        row, column = pair // width, columns.reshape(-1)[pair]
        # With more rows than anchors the last rounds find nothing left.
        found = left.reshape(-1)[pair] > -jnp.inf
        matches = matches.at[column].set(jnp.where(found, row, matches[column]).astype(jnp.int32))
        taken = (columns == column) | (jnp.arange(rows)[:, None] == row)
        return matches, jnp.where(taken, -jnp.inf, left)

    start = (
        jnp.full(anchors, BACKGROUND, jnp.int32),
        jnp.where(valid_rows[:, None], values, -jnp.inf),
    )
    matches, _ = lax.fori_loop(0, valid_rows.sum(), join, start)
    return matches


def _force_match(similarity: Array, valid_rows: Array, matches: Array) -> Array:
    """Overwrites the match of each valid row's most similar anchor with that row."""
    rows, anchors = similarity.shape
    favorites = jnp.argmax(similarity, axis=1)
    claims = (favorites[:, None] == jnp.arange(anchors)) & valid_rows[:, None]
    # A minimum instead of an argmax: it says at once who claims first and whether anybody does.
    claimant = jnp.min(jnp.where(claims, jnp.arange(rows)[:, None], rows), axis=0)
    return jnp.where(claimant < rows, claimant, matches).astype(jnp.int32)


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
