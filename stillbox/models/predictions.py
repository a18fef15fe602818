"""Predictions of a detector's head."""

from typing import NamedTuple

from jax import Array


class Predictions(NamedTuple):
    """Raw predictions for B images and A anchors, in the anchors' order, always float32."""

    box_encodings: Array
    """`[B, A, S]`, S codes of the box coder."""
    class_logits: Array
    """`[B, A, C]`, C counts the background slot, if any."""
