"""Predictions of a detector's head, and the boxes that they are turned into."""

from typing import NamedTuple

from jax import Array


class Predictions(NamedTuple):
    """Raw predictions for B images and A anchors, in the anchors' order, always float32."""

    box_encodings: Array
    """`[B, A, S]`, S codes of the box coder."""
    class_logits: Array
    """`[B, A, C]`, C counts the background slot, if any."""


class Candidates(NamedTuple):
    """The boxes of B images that the last suppression chooses from, N for each."""

    boxes: Array
    """`[B, N, 4]` float32, as `raw_detection_boxes` of the original."""
    scores: Array
    """`[B, N, slots]` float32, the background's in slot 0 if the model has that class."""
