"""Targets of every anchor of an image."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from stillbox.boxes.geometry import PairFunction, area, iou
from stillbox.boxes.matchers import IGNORED, Rows

Match = Callable[[Rows], Array]
"""From similarities to matches `[A]`."""
Encode = Callable[[Array, Array], Array]
"""From boxes `[A, 4]` and anchors `[A, 4]` to codes `[A, S]`."""


class Targets(NamedTuple):
    """Targets and weights of A anchors over C class slots; under `vmap` with `[B]` in front."""

    class_targets: Array
    """`[A, C]` float32, C counts the background slot, if any."""
    class_weights: Array
    """`[A]` float32."""
    box_targets: Array
    """`[A, S]` float32, S codes of the box coder, 0 for anchors without a match."""
    box_weights: Array
    """`[A]` float32, 0 for anchors without a match."""
    matches: Array
    """`[A]` int32, the ground-truth row, or `matchers.BACKGROUND` or `matchers.IGNORED`."""


def assign_targets(
    anchors: ArrayLike,
    boxes: ArrayLike,
    classes: ArrayLike,
    weights: ArrayLike,
    *,
    num_classes: int,
    background_class: bool,
    encode_background_as_zeros: bool,
    negative_class_weight: float,
    match: Match,
    encode: Encode,
    similarity: PairFunction = iou,
    used_rows: ArrayLike | None = None,
) -> Targets:
    """Returns the targets of one image; `jax.vmap` makes it those of a batch.

    A row without weight takes part in the matching: anchors that are assigned to it get weight 0 in
    both losses, which excludes the regions of crowds and difficult boxes from the loss. Padding,
    which has neither weight nor area, matches nothing.

    Args:
        anchors: `[A, 4]`.
        boxes: `[N, 4]`, ground truth and padding, N at least 1.
        classes: `[N]` int, from 0; a class of `num_classes` or more has no slot and is all zeros.
        weights: `[N]`, 0 for padding and for ignored boxes.
        num_classes: foreground classes.
        background_class: slot 0 is the background, the classes follow.
        encode_background_as_zeros: background anchors have a class target of zeros; otherwise slot
            0, if there is a background slot.
        negative_class_weight: weight of background anchors in the classification loss.
        match: the row that each anchor is assigned to.
        encode: the box coder.
        similarity: the matcher's function of pairs.
        used_rows: rows from this one on are padding, an int32 scalar; None: any row may be a box.
    """
    anchors, boxes = jnp.asarray(anchors, jnp.float32), jnp.asarray(boxes, jnp.float32)
    classes, weights = jnp.asarray(classes, jnp.int32), jnp.asarray(weights, jnp.float32)
    padding = is_padding(boxes, weights)

    def row(index: Array) -> Array:
        return jnp.where(padding[index], -jnp.inf, similarity(boxes[index], anchors))

    used = len(boxes) if used_rows is None else used_rows
    matches = match(Rows(row, weights > 0, used))
    matched, rows = matches >= 0, jnp.maximum(matches, 0)
    row_weights = weights[rows]

    first = 1 if background_class else 0
    background = 0 if background_class and not encode_background_as_zeros else -1
    slot = jnp.where(matched, classes[rows] + first, background)
    codes = encode(boxes[rows], anchors)
    unmatched_weights = jnp.where(matches == IGNORED, 0.0, negative_class_weight)
    return Targets(
        class_targets=jax.nn.one_hot(slot, num_classes + first, dtype=jnp.float32),
        class_weights=jnp.where(matched, row_weights, unmatched_weights),
        box_targets=jnp.where(matched[:, None], codes, 0.0),
        box_weights=jnp.where(matched, row_weights, 0.0),
        matches=matches,
    )


def is_padding(boxes: ArrayLike, weights: ArrayLike) -> Array:
    """Returns `[..., N]`: which of the boxes `[..., N, 4]` have neither weight nor area."""
    return (jnp.asarray(weights) == 0.0) & (area(boxes) == 0.0)
