"""Postprocessing: from raw predictions to detections by score conversion, decoding and NMS."""

import jax
import jax.numpy as jnp
from numpy import float32
from numpy.typing import NDArray

from stillbox.boxes.structures import Detections
from stillbox.experiment import schema
from stillbox.models.box_coders import build_box_coder
from stillbox.models.postprocessing import convert_logits, suppress
from stillbox.models.predictions import Candidates, Predictions


def postprocess(
    predictions: Predictions,
    anchors: NDArray[float32] | jax.Array,
    true_sizes: jax.Array,
    model: schema.OneStage,
) -> Detections:
    """Turns predictions into at most `max_total` detections an image.

    Args:
        anchors: `[A, 4]`, normalised to the network input.
        true_sizes: `[B, 2]`, height and width of the image inside the network input, in pixels.

    Returns:
        Boxes normalised to the true images and clipped to them, unless configured otherwise.
    """
    return postprocess_among(predictions, anchors, true_sizes, model)[0]


@jax.named_scope("postprocess")
def postprocess_among(
    predictions: Predictions,
    anchors: NDArray[float32] | jax.Array,
    true_sizes: jax.Array,
    model: schema.OneStage,
) -> tuple[Detections, Candidates]:
    """Returns `postprocess`, and the boxes of all anchors that it has chosen from.

    Those are normalised to the network input and not clipped.
    """
    boxes = decode_boxes(predictions.box_encodings, anchors, model)
    scores = convert_logits(predictions.class_logits, model.postprocessing)
    nms, input_size = model.postprocessing.nms, model.resizer.input_size
    found = suppress(boxes, class_scores(scores, model), true_sizes, nms, input_size)
    return found, Candidates(boxes, scores)


def decode_boxes(
    encodings: jax.Array, anchors: NDArray[float32] | jax.Array, model: schema.OneStage
) -> jax.Array:
    """Maps encodings `[B, A, code_size]` to boxes `[B, A, 4]`, normalised to the network input."""
    limits = model.postprocessing.box_encodings_clip
    if limits is not None:
        encodings = jnp.clip(encodings, limits.min, limits.max)
    coder = build_box_coder(model.box_coder, model.resizer.input_size)
    return coder.decode(encodings, jnp.asarray(anchors))


def class_scores(scores: jax.Array, model: schema.OneStage) -> jax.Array:
    """Returns the scores `[B, A, num_classes]` among those of all slots, `[B, A, slots]`."""
    return scores[..., 1:] if model.background_class else scores
