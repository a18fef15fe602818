"""From raw predictions to detections: scores, boxes, NMS (fact sheet 3.7)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from stillbox.boxes.detections import Detections
from stillbox.boxes.nms import batched_nms
from stillbox.experiment import schema
from stillbox.models.coding import build_box_coder
from stillbox.models.predictions import Predictions


def postprocess(
    predictions: Predictions,
    anchors: NDArray[np.float32] | jax.Array,
    true_sizes: jax.Array,
    model: schema.Model,
) -> Detections:
    """Turns predictions into at most `max_total` detections an image.

    Args:
        predictions: of B images and A anchors.
        anchors: `[A, 4]`, normalised to the network input.
        true_sizes: `[B, 2]`, height and width of the image proper inside the network input, pixels.
        model: the detector's description.

    Returns:
        Boxes normalised to the true images, clipped to them.
    """
    height, width = model.resizer.input_size
    nms = model.postprocessing.nms
    boxes = build_box_coder(model.box_coder).decode(predictions.box_encodings, jnp.asarray(anchors))
    ends = true_sizes.astype(jnp.float32) / jnp.asarray((height, width), jnp.float32)
    return batched_nms(
        boxes,
        class_scores(predictions.class_logits, model),
        score_threshold=nms.score_threshold,
        iou_threshold=nms.iou_threshold,
        max_per_class=nms.max_per_class,
        max_total=nms.max_total,
        clip_window=jnp.concatenate([jnp.zeros_like(ends), ends], axis=-1),
        change_coordinate_frame=True,
    )


def class_scores(logits: jax.Array, model: schema.Model) -> jax.Array:
    """Maps `[B, A, slots]` logits to `[B, A, num_classes]` scores, without the background's."""
    convert = _CONVERTERS[model.postprocessing.score_converter]
    scores = convert(logits / model.postprocessing.logit_scale)
    return scores[..., 1:] if model.background_class else scores


def _identity(logits: jax.Array) -> jax.Array:
    return logits


_CONVERTERS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "identity": _identity,
    "sigmoid": jax.nn.sigmoid,
    "softmax": jax.nn.softmax,
}
