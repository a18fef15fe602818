"""Scores from logits, calibration and suppression, as configured.

The original is `object_detection/builders/post_processing_builder.py`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from stillbox.boxes.nms import batched_nms
from stillbox.boxes.nms_prefix import SearchLimits, sorted_candidates
from stillbox.boxes.structures import Detections
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of

Scores = Float[Array, "*B C"]


def convert_logits(logits: Scores, config: schema.Postprocessing) -> Scores:
    """Returns the scores of all class channels, the background's among them."""
    convert = _CONVERTERS[config.score_converter]
    scores = convert(logits / config.logit_scale)
    if config.calibration is not None:
        # Before the background is removed: calibrations count its channel.
        scores = implementation_of(config.calibration)(config.calibration, scores)
    return scores


_CONVERTERS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda logits: logits,
    "sigmoid": jax.nn.sigmoid,
    "softmax": jax.nn.softmax,
}


def best_of_levels(
    scores: Float[Array, "B A C"], level_sizes: tuple[int, ...], nms: schema.Nms
) -> Float[Array, "B A C"]:
    """Sets the scores of all but the best pairs of an anchor and a class of each map to 0.

    As `filter_scores_and_topk` in `mmdet/models/utils/misc.py`. Among equals the first pairs are
    kept.

    Args:
        scores: without the background's, at least 0.
        level_sizes: numbers of anchors of the feature maps; empty: there is one map.
        nms: `score_threshold`, and the number of pairs.
    """
    most, (batch, anchors, classes) = nms.max_candidates_per_level, scores.shape
    ends = np.cumsum(level_sizes or (anchors,))[:-1]
    kept = []
    for level in jnp.split(scores, ends, axis=1):
        pairs = jnp.where(level > nms.score_threshold, level, 0.0).reshape(batch, -1)
        if pairs.shape[1] > most:
            pairs = sorted_candidates(pairs, most, 0.0)
        kept.append(pairs.reshape(batch, -1, classes))
    return jnp.concatenate(kept, axis=1)


def suppress(
    boxes: Float[Array, "B A 4"] | Float[Array, "B A C 4"],
    scores: Float[Array, "B A C"],
    true_sizes: Int[Array, "B 2"],
    nms: schema.Nms,
    input_size: tuple[int, int],
    *,
    in_pixels: bool = False,
) -> Detections:
    """Returns at most `max_total` detections an image.

    Args:
        boxes: of all classes or of each, normalised to the network input or in its pixels.
        scores: without the background's.
        true_sizes: height and width of the image inside the network input, in pixels.
        nms: how.
        input_size: height and width of the network input, in pixels.
        in_pixels: the boxes are in pixels.

    Returns:
        Boxes normalised to the true images and clipped to them, unless configured otherwise.
    """
    clip_window, frame = suppression_windows(true_sizes, nms, input_size, in_pixels=in_pixels)
    limits = SearchLimits(
        score_threshold=nms.score_threshold,
        iou_threshold=nms.iou_threshold,
        max_per_class=nms.max_per_class,
        max_total=nms.max_total,
        drop_at_threshold=nms.drop_at_threshold,
        soft_sigma=nms.soft_sigma,
        max_candidates_per_class=nms.max_candidates_per_class,
    )
    detections = batched_nms(
        boxes,
        scores,
        limits,
        clip_window=clip_window,
        frame=frame,
        clip_first=nms.clip_first,
        keep_empty=_keeps_empty(nms),
        class_agnostic=nms.class_agnostic,
    )
    if in_pixels and not nms.change_coordinate_frame:
        size = jnp.asarray(input_size, jnp.float32)
        return detections._replace(boxes=detections.boxes / jnp.tile(size, 2))
    return detections


def suppression_windows(
    true_sizes: Int[Array, "B 2"],
    nms: schema.Nms,
    input_size: tuple[int, int],
    *,
    in_pixels: bool = False,
) -> tuple[Float[Array, "B 4"] | None, Float[Array, "B 4"] | None]:
    """Returns the windows that boxes are clipped to and normalised to; None: they are not.

    For the arguments see `suppress`.
    """
    size = jnp.asarray(input_size, jnp.float32)
    pixel, whole = (1.0, size) if in_pixels else (size, jnp.ones_like(size))
    ends = true_sizes.astype(jnp.float32) / pixel
    return (
        _clip_window(ends, whole, pixel, nms) if nms.clip else None,
        window_of(ends) if nms.change_coordinate_frame else None,
    )


def _keeps_empty(nms: schema.Nms) -> bool | None:
    if nms.empty_boxes == "as_original":
        return True if nms.combined else None
    return nms.empty_boxes == "keep"


def _clip_window(
    ends: Float[Array, "B 2"],
    whole: Float[Array, "2"],
    pixel: Float[Array, "2"] | float,
    nms: schema.Nms,
) -> Float[Array, "B 4"]:
    """Returns the windows that boxes are clipped to.

    Args:
        ends: of the true images, in the unit of the boxes.
        whole: height and width of the network input in that unit.
        pixel: the divisor from pixels to that unit.
        nms: how.
    """
    if nms.combined or nms.clip_to == "input":
        ends = jnp.broadcast_to(whole, ends.shape)
    if nms.clip_margin:
        ends = ends - nms.clip_margin / pixel
    return window_of(ends)


def window_of(ends: Float[Array, "B 2"]) -> Float[Array, "B 4"]:
    """Returns the windows from the upper left corner to `ends`."""
    return jnp.concatenate([jnp.zeros_like(ends), ends], axis=-1)
