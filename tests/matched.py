"""The loss `matched` of given predictions, without a detector."""

from typing import NamedTuple

import jax

from stillbox.models.detector import LossInputs, LossOutput
from stillbox.models.one_stage.loss import matched_loss


class Terms(NamedTuple):
    """Terms and metric of the loss."""

    classification: jax.Array
    localization: jax.Array
    matched_anchors: jax.Array


def loss_output(predictions, batch, anchors, model, **inputs) -> LossOutput:
    """Returns the loss of all anchors on one map; `inputs` are fields of `LossInputs`."""
    given = LossInputs(batch, **inputs)
    return matched_loss(model.loss, model, predictions, anchors, (), given)


def loss_terms(predictions, batch, anchors, model, **inputs) -> Terms:
    """Returns the terms of `loss_output`."""
    output = loss_output(predictions, batch, anchors, model, **inputs)
    names = "classification_loss", "localization_loss"
    return Terms(*(output.terms[name] for name in names), output.metrics["matched_anchors"])
