"""Postprocessing: from raw predictions to detections by score conversion, decoding and NMS.

As `object_detection/builders/post_processing_builder.py`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from numpy import float32
from numpy.typing import NDArray

from stillbox.boxes.detections import Detections
from stillbox.boxes.nms import batched_nms
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models import calibration as _calibration  # noqa: F401 - registers them
from stillbox.models.box_coders import build_box_coder
from stillbox.models.predictions import Predictions


@jax.named_scope("postprocess")
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
    nms = model.postprocessing.nms
    boxes = decode_boxes(predictions.box_encodings, anchors, model)
    input_size = model.resizer.input_size
    ends = true_sizes.astype(jnp.float32) / jnp.asarray(input_size, jnp.float32)
    return batched_nms(
        boxes,
        class_scores(predictions.class_logits, model),
        score_threshold=nms.score_threshold,
        iou_threshold=nms.iou_threshold,
        max_per_class=nms.max_per_class,
        max_total=nms.max_total,
        clip_window=_clip_window(ends, input_size, nms) if nms.clip else None,
        frame=_window(ends) if nms.change_coordinate_frame else None,
        clip_first=nms.clip_first,
        keep_outside=nms.combined,
        class_agnostic=nms.class_agnostic,
        drop_at_threshold=nms.drop_at_threshold,
        soft_sigma=nms.soft_sigma,
        max_candidates_per_class=nms.max_candidates_per_class,
    )


def decode_boxes(
    encodings: jax.Array, anchors: NDArray[float32] | jax.Array, model: schema.OneStage
) -> jax.Array:
    """Maps encodings `[B, A, code_size]` to boxes `[B, A, 4]`, normalised to the network input."""
    limits = model.postprocessing.box_encodings_clip
    if limits is not None:
        encodings = jnp.clip(encodings, limits.min, limits.max)
    coder = build_box_coder(model.box_coder, model.resizer.input_size)
    return coder.decode(encodings, jnp.asarray(anchors))


def _clip_window(ends: jax.Array, input_size: tuple[int, int], nms: schema.Nms) -> jax.Array:
    """Returns the windows that boxes are clipped to, `[B, 4]`.

    `ends` `[B, 2]` are the ends of the true images as shares of the network input.
    """
    if nms.combined or nms.clip_to == "input":
        ends = jnp.ones_like(ends)
    if nms.clip_margin:
        ends = ends - nms.clip_margin / jnp.asarray(input_size, jnp.float32)
    return _window(ends)


def _window(ends: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.zeros_like(ends), ends], axis=-1)


def class_scores(logits: jax.Array, model: schema.OneStage) -> jax.Array:
    """Maps `[B, A, slots]` logits to `[B, A, num_classes]` scores, without the background's."""
    scores = slot_scores(logits, model)
    return scores[..., 1:] if model.background_class else scores


def slot_scores(logits: jax.Array, model: schema.OneStage) -> jax.Array:
    """Maps `[B, A, slots]` logits to `[B, A, slots]` scores, the background's among them."""
    convert = _CONVERTERS[model.postprocessing.score_converter]
    scores = convert(logits / model.postprocessing.logit_scale)
    calibration = model.postprocessing.calibration
    if calibration is not None:
        # Before the background slot is removed: calibrations count slots with it.
        scores = implementation_of(calibration)(calibration, scores)
    return scores


_CONVERTERS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "identity": lambda logits: logits,
    "sigmoid": jax.nn.sigmoid,
    "softmax": jax.nn.softmax,
}
