"""The refusal of detections that come from NaN or infinity."""

from stillbox.errors import UserError


def not_finite(image: str) -> UserError:
    """Returns the error for an image whose predictions are not finite.

    Suppression takes NaN for no candidate: without this check such a model finds no object.

    Args:
        image: the image that it was found at.
    """
    return UserError(
        "the model's predictions for this image are not finite (NaN or infinity)",
        where=image,
        fix="check the weights: take an earlier checkpoint with --step, train again with a lower "
        "learning rate or with gradient clipping; if evaluation.precision is bfloat16, try float32",
    )
