"""The refusal of detections that come from NaN or infinity."""

from stillbox.errors import UserError


class NotFiniteError(UserError):
    """The model's predictions are not finite: a fault of its weights, not of the image."""


def not_finite(image: str) -> NotFiniteError:
    """Returns the error for an image whose predictions are not finite.

    Suppression takes NaN for no candidate: without this check such a model finds no object.

    Args:
        image: the image that it was found at.
    """
    return NotFiniteError(
        "the model's predictions for this image are not finite (NaN or infinity)",
        where=image,
        fix="check the weights: take an earlier checkpoint, train again with a lower learning "
        "rate or with gradient clipping; if evaluation.precision is bfloat16, try float32",
    )
