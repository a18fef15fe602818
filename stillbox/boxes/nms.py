"""Non-maximum suppression in arrays of fixed size."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from stillbox.boxes.detections import Detections
from stillbox.boxes.geometry import area, change_frame, clip_to_window
from stillbox.boxes.nms_prefix import Found, SearchLimits
from stillbox.boxes.nms_search import search


def batched_nms(
    boxes: ArrayLike,
    scores: ArrayLike,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_per_class: int,
    max_total: int,
    clip_window: ArrayLike | None = None,
    frame: ArrayLike | None = None,
    clip_first: bool = False,
    keep_outside: bool = False,
    class_agnostic: bool = False,
    drop_at_threshold: bool = False,
    soft_sigma: float = 0.0,
    max_candidates_per_class: int = 0,
) -> Detections:
    """Returns the best boxes of each image after greedy suppression in every class.

    The original (`object_detection/core/post_processing.py`) suppresses class by class, then
    merges, sorts, clips, drops boxes without area and truncates. This picks the best box over all
    classes repeatedly, which finds the same detections in the same order but stops at the last one
    that is needed. Equal scores go to the lower class, then the lower anchor.

    Args:
        boxes: `[B, A, 4]`, the same for every class, or `[B, A, C, 4]`; not clipped.
        scores: `[B, A, C]`, without a background slot.
        score_threshold: only scores strictly above are candidates.
        iou_threshold: a box is dropped if it overlaps a better one of its class by more.
        max_per_class: most boxes of a class, counted before clipping drops any.
        max_total: most boxes of an image, the K of the result.
        clip_window: `[B, 4]`; boxes are clipped to it, and those without area left are dropped.
            None: boxes are not clipped, and all are kept.
        frame: `[B, 4]`; the boxes are re-expressed so that this window becomes `[0, 0, 1, 1]`.
            None: they stay in their own.
        clip_first: measure overlaps on the clipped boxes instead of the original ones.
        keep_outside: keep boxes that clipping leaves without area.
        class_agnostic: a box is a candidate of its best class only (the lowest among equals), and
            is dropped for a better box of any class. `max_per_class` is not used; at most
            `max_total` boxes are picked, before clipping drops any.
        drop_at_threshold: drop a box that overlaps a better one by exactly the threshold too.
        soft_sigma: above 0, no box is dropped for its overlap. Each pick multiplies the scores of
            its class by `exp(-iou^2 / (2 soft_sigma))` instead, and boxes whose score falls to
            `score_threshold` are dropped (arXiv:1704.04503). Scores must not be negative.
        max_candidates_per_class: only so many boxes of a class, the best, are candidates; 0: all.
    """
    boxes, scores = jnp.asarray(boxes, jnp.float32), jnp.asarray(scores, jnp.float32)
    best_classes = None
    if class_agnostic:
        best_classes = jnp.argmax(scores, axis=-1)
        scores, max_per_class = scores.max(axis=-1, keepdims=True), max_total
        if boxes.ndim == 4:
            boxes = jnp.take_along_axis(boxes, best_classes[..., None, None], axis=2)[:, :, 0]
    if boxes.ndim == 4:
        # Classes before anchors, as the scores: a pick reads one contiguous row an image.
        boxes = boxes.swapaxes(1, 2)
    clipped, visible = _clip_boxes(boxes, clip_window, keep_outside)
    output_boxes = clipped
    if frame is not None:
        output_boxes = change_frame(clipped, _beside(frame, clipped))
    boxes = clipped if clip_first else boxes

    limits = SearchLimits(
        score_threshold=score_threshold,
        iou_threshold=iou_threshold,
        max_per_class=max_per_class,
        max_total=max_total,
        drop_at_threshold=drop_at_threshold,
        soft_sigma=soft_sigma,
        max_candidates_per_class=max_candidates_per_class,
    )
    found = search(boxes, visible, scores, limits)
    return _gather_detections(found, output_boxes, best_classes)


def _gather_detections(end: Found, boxes: Array, best_classes: Array | None) -> Detections:
    """Returns detections with boxes `[B, A, 4]` or `[B, C, A, 4]`.

    `best_classes` are the classes `[B, A]` if the search was class-agnostic.
    """
    real = jnp.arange(end.found.shape[1]) < end.count[:, None]
    found_classes, found_anchors = jnp.divmod(end.found, boxes.shape[-2])
    if best_classes is not None:
        classes = jnp.take_along_axis(best_classes, found_anchors, axis=1)
        found_classes = jnp.where(real, classes, 0)
    rows = found_anchors if boxes.ndim == 3 else end.found
    flat = boxes if boxes.ndim == 3 else boxes.reshape(boxes.shape[0], -1, 4)
    found_boxes = jnp.take_along_axis(flat, rows[..., None], axis=1)
    return Detections(
        boxes=jnp.where(real[..., None], found_boxes, 0.0),
        scores=end.scores,
        classes=found_classes,
        count=end.count,
        anchors=found_anchors,
    )


def _clip_boxes(
    boxes: Array, clip_window: ArrayLike | None, keep_outside: bool
) -> tuple[Array, Array]:
    """Returns the clipped boxes `[B, ..., 4]`, and which can be a detection, `[B, ...]`."""
    visible = jnp.ones(boxes.shape[:-1], bool)
    if clip_window is None:
        return boxes, visible
    clipped = clip_to_window(boxes, _beside(clip_window, boxes))
    return clipped, visible if keep_outside else area(clipped) > 0.0


def _beside(windows: ArrayLike, boxes: Array) -> Array:
    """Returns windows `[B, 4]` in a shape that broadcasts with boxes `[B, ..., 4]`."""
    windows = jnp.asarray(windows, jnp.float32)
    return jnp.expand_dims(windows, tuple(range(1, boxes.ndim - 1)))
