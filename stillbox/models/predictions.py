"""What a detector's head says about every anchor."""

from typing import NamedTuple

from jax import Array


class Predictions(NamedTuple):
    """Raw predictions for B images and A anchors, in the anchors' order, always float32."""

    box_encodings: Array
    """`[B, A, S]`, S codes in the box coder's terms."""
    class_logits: Array
    """`[B, A, C]`, C counts the background slot where the model has one."""
