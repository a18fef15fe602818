"""Non-maximum suppression in arrays of fixed size: the search for boxes, and what it returns."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, export, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float32, Int32, Real

from stillbox.boxes.geometry import area, change_frame, clip_to_window, iou
from stillbox.boxes.nms_prefix import (
    BoxesOfClasses,
    NmsResult,
    SearchLimits,
    VisibleOfClasses,
    search_prefix,
)
from stillbox.boxes.nms_unrolled import search_unrolled
from stillbox.boxes.sampling import top_k_mask
from stillbox.boxes.structures import Detections
from stillbox.jax_internals import Primitive, ShapedArray
from stillbox.lowering import current_lowering

_FEW = 512
"""Anchors that are searched at once, without looking at the best candidates first."""

_DEPTHS = (6, 20)
"""Candidates for each of `max_total` detections in the searches before the search of all boxes. An
SSD without a threshold needs at most 4.6 on each of fifty photographs of COCO."""

SEARCH = Primitive("nms_search")
"""`search` as one operation, which returns the fields of `NmsResult`.

It has no implementation: a converter writes the suppression of its runtime instead.
"""
SEARCH.multiple_results = True


@SEARCH.def_abstract_eval
def _search_shapes(
    boxes: ShapedArray, visible: ShapedArray, scores: ShapedArray, *, limits: SearchLimits
) -> list[ShapedArray]:
    batch, most = scores.shape[0], limits.max_total
    rows = (batch, most)
    types = (rows, jnp.int32), (rows, jnp.float32), ((batch,), jnp.int32)
    return [ShapedArray(shape, jnp.dtype(dtype)) for shape, dtype in types]


class _Search(NamedTuple):
    """State of the search between two picks."""

    scores: Float32[Array, "B C A"]
    """Minus infinity for what is picked, suppressed or below the threshold."""
    best: Float32[Array, "B C"]
    """The best score left in each class; minus infinity where the class is done."""
    picks: Int32[Array, "B C"]
    """Boxes picked in each class."""
    indices: Int32[Array, "B K"]
    """Class * A + anchor of each detection."""
    found_scores: Float32[Array, "B K"]
    found_count: Int32[Array, "B"]


def search(
    boxes: BoxesOfClasses,
    visible: VisibleOfClasses,
    scores: Float32[Array, "B A C"],
    limits: SearchLimits,
) -> NmsResult:
    """Picks the best boxes of each image until it has all of its detections.

    The suppression of the current `Lowering` chooses its form:

    - `loop` ends with the last detection of every image.
    - `unrolled` has the operations of TensorFlow Lite alone, since MediaPipe rejects models with
      loops: see `search_unrolled`. The detections are the same but for two cases. Boxes of which
      clipping leaves nothing are left out before and not during the search. Of more than 2,000
      anchors it searches the best only, which may find fewer than `max_total`.
    - `operation` is `SEARCH`.
    """
    form = current_lowering().suppression
    if form == "operation":
        return NmsResult(*SEARCH.bind(boxes, visible, scores, limits=limits))
    if form == "unrolled":
        return search_unrolled(boxes, visible, scores, limits)
    if scores.shape[1] <= _FEW or limits.soft_sigma > 0.0:
        return _search_all(boxes, visible, scores, limits)
    if export.is_symbolic_dim(scores.shape[0]):
        # TensorFlow does not run `top_k` in an array of any size, and sorts gain nothing there.
        return _search_all(boxes, visible, scores, limits)

    def search_from(depths: tuple[int, ...]) -> NmsResult:
        if not depths:
            return _search_all(boxes, visible, scores, limits)
        result, done = search_prefix(boxes, visible, scores, limits, depths[0])
        return lax.cond(jnp.all(done), lambda: result, lambda: search_from(depths[1:]))

    return search_from(_DEPTHS)


def _search_all(
    boxes: BoxesOfClasses,
    visible: VisibleOfClasses,
    scores: Float32[Array, "B A C"],
    limits: SearchLimits,
) -> NmsResult:
    start = _start_search(scores, visible, limits)
    end = _run_search(
        start,
        lambda search: _pick(search, boxes, visible, limits),
        limits.max_total,
    )
    return NmsResult(end.indices, end.found_scores, end.found_count)


def _start_search(
    scores: Float32[Array, "B A C"], visible: VisibleOfClasses, limits: SearchLimits
) -> _Search:
    batch, anchors, classes = scores.shape
    max_total = limits.max_total
    # Classes before anchors: a pick then reads and writes one contiguous row an image.
    candidates = jnp.where(scores > limits.score_threshold, scores, -jnp.inf).swapaxes(1, 2)
    if 0 < limits.max_candidates_per_class < anchors:
        candidates = _best_candidates(candidates, limits.max_candidates_per_class)
    visible = visible if visible.ndim == 3 else visible[:, None]
    return _Search(
        scores=candidates,
        best=_best_left(candidates, visible),
        picks=jnp.zeros((batch, classes), jnp.int32),
        indices=jnp.zeros((batch, max_total), jnp.int32),
        found_scores=jnp.zeros((batch, max_total), jnp.float32),
        found_count=jnp.zeros(batch, jnp.int32),
    )


def _best_candidates(candidates: Float32[Array, "B C A"], most: int) -> Float32[Array, "B C A"]:
    """Sets all but the best candidates of each class to minus infinity."""

    def limit(scores: Float32[Array, "B C A"]) -> Float32[Array, "B C A"]:
        return jnp.where(top_k_mask(scores, jnp.full(scores.shape[:2], most)), scores, -jnp.inf)

    # Few images have so many in one class, and the mask takes 32 passes over all scores.
    crowded = jnp.any(jnp.sum(candidates > -jnp.inf, axis=-1) > most)
    return lax.cond(crowded, limit, lambda scores: scores, candidates)


def _best_left(
    scores: Float32[Array, "*B A"], visible: Bool[Array, "*#B A"]
) -> Float32[Array, "*B"]:
    """Returns the best score; minus infinity without visible candidates.

    Without the latter, images with few objects, and padding rows, would prolong the search.
    """
    unfinished = (visible & (scores > -jnp.inf)).any(axis=-1)
    return jnp.where(unfinished, scores.max(axis=-1), -jnp.inf)


def _run_search(start: _Search, pick: Callable[[_Search], _Search], max_total: int) -> _Search:
    """Picks until every image has `max_total` detections or no candidate left."""
    return lax.while_loop(
        lambda search: jnp.any(
            (search.found_count < max_total) & (search.best.max(axis=-1) > -jnp.inf)
        ),
        pick,
        start,
    )


def _pick(
    search: _Search,
    boxes: BoxesOfClasses,
    visible: VisibleOfClasses,
    limits: SearchLimits,
) -> _Search:
    """Picks the best box of every image, and drops what it suppresses from its class.

    Finished images take part without a change of the result.

    Args:
        visible: false for boxes that clipping leaves no area; they suppress like any other and are
            counted in their class, but are no detections.
    """
    batch, anchors = visible.shape[0], visible.shape[-1]
    images = jnp.arange(batch)
    class_ = jnp.argmax(search.best, axis=-1)
    if boxes.ndim == 4:
        boxes, visible = boxes[images, class_], visible[images, class_]
    row = search.scores[images, class_]
    score = jnp.max(search.best, axis=-1)
    anchor = _first_place(row, score)

    overlaps = iou(boxes[images, anchor][:, None], boxes)
    # The pick is dropped by index: a box without area does not overlap even itself.
    picked = jnp.arange(anchors) == anchor[:, None]
    row = jnp.where(picked, -jnp.inf, limits.suppressed(row, overlaps))
    picks = search.picks[images, class_] + 1
    full = picks >= limits.max_per_class

    emit = (score > -jnp.inf) & visible[images, anchor]
    # No index equals the count of a full image.
    here = emit[:, None] & (jnp.arange(search.indices.shape[1]) == search.found_count[:, None])
    return _Search(
        scores=_with_row(search.scores, class_, row),
        best=_with_row(search.best, class_, jnp.where(full, -jnp.inf, _best_left(row, visible))),
        picks=_with_row(search.picks, class_, picks),
        indices=jnp.where(here, (class_ * anchors + anchor)[:, None], search.indices),
        found_scores=jnp.where(here, score[:, None], search.found_scores),
        found_count=search.found_count + here.any(axis=1),
    )


def _first_place(row: Float32[Array, "B A"], score: Float32[Array, "B"]) -> Int32[Array, "B"]:
    """Returns the first place of a score in its row; 0 if it is not there.

    A CPU computes it in a quarter of the time of `argmax`, which XLA does not vectorise.
    """
    size = row.shape[1]
    places = jnp.where(row == score[:, None], jnp.arange(size), size)
    return places.min(axis=1) % size


def _with_row(
    array: Real[Array, "B C *rest"], class_: Int32[Array, "B"], row: Real[Array, "B *rest"]
) -> Real[Array, "B C *rest"]:
    """Returns `array` with `row` at `class_` of each image."""
    if array.shape[0] == 1:  # false for a symbolic batch size, too
        # One image needs no scatter.
        return lax.dynamic_update_slice_in_dim(array, row[:, None], class_[0], axis=1)
    return array.at[jnp.arange(array.shape[0]), class_].set(row)


def batched_nms(
    boxes: Real[ArrayLike, "B A 4"] | Real[ArrayLike, "B A C 4"],
    scores: Real[ArrayLike, "B A C"],
    limits: SearchLimits,
    *,
    clip_window: Real[ArrayLike, "B 4"] | None = None,
    frame: Real[ArrayLike, "B 4"] | None = None,
    clip_first: bool = False,
    keep_empty: bool | None = None,
    class_agnostic: bool = False,
) -> Detections:
    """Returns the best boxes of each image after greedy suppression in every class.

    The original (`object_detection/core/post_processing.py`) suppresses class by class, then
    merges, sorts, clips, drops boxes without area and truncates. This picks the best box over all
    classes repeatedly, which finds the same detections in the same order but stops at the last one
    that is needed. Equal scores go to the lower class, then the lower anchor.

    Args:
        boxes: one set for all classes, or one for each; not clipped.
        scores: of the classes, without the background.
        limits: of the search.
        clip_window: boxes are clipped to it; None: they are not.
        frame: the boxes are re-expressed so that this window becomes `[0, 0, 1, 1]`. None: they
            stay in their own.
        clip_first: measure overlaps on the clipped boxes instead of the original ones.
        keep_empty: keep boxes without area; None: where boxes are not clipped.
        class_agnostic: a box is a candidate of its best class only (the lowest among equals), and
            is dropped for a better box of any class. `max_per_class` is not used; at most
            `max_total` boxes are picked, before clipping drops any.
    """
    boxes, scores = jnp.asarray(boxes, jnp.float32), jnp.asarray(scores, jnp.float32)
    best_classes = None
    if class_agnostic:
        boxes, scores, best_classes = _best_class_of_each_anchor(boxes, scores)
        limits = limits._replace(max_per_class=limits.max_total)
    if boxes.ndim == 4:
        # Classes before anchors, as the scores: a pick reads one contiguous row an image.
        boxes = boxes.swapaxes(1, 2)
    clipped, visible = _clip_boxes(boxes, clip_window, keep_empty)
    output_boxes = clipped if frame is None else change_frame(clipped, _beside(frame, clipped))
    boxes = clipped if clip_first else boxes
    result = search(boxes, visible, scores, limits)
    return _gather_detections(result, output_boxes, best_classes)


def _best_class_of_each_anchor(
    boxes: Float32[Array, "B A 4"] | Float32[Array, "B A C 4"], scores: Float32[Array, "B A C"]
) -> tuple[Float32[Array, "B A 4"], Float32[Array, "B A 1"], Int32[Array, "B A"]]:
    """Returns boxes, scores and numbers of the best classes, the lowest among equals."""
    classes = jnp.argmax(scores, axis=-1)
    if boxes.ndim == 4:
        boxes = jnp.take_along_axis(boxes, classes[..., None, None], axis=2)[:, :, 0]
    return boxes, scores.max(axis=-1, keepdims=True), classes


def _gather_detections(
    end: NmsResult, boxes: BoxesOfClasses, best_classes: Int32[Array, "B A"] | None
) -> Detections:
    """Returns detections; `best_classes`: of each anchor, for a class-agnostic search."""
    real = jnp.arange(end.indices.shape[1]) < end.count[:, None]
    found_classes, found_anchors = jnp.divmod(end.indices, boxes.shape[-2])
    if best_classes is not None:
        classes = jnp.take_along_axis(best_classes, found_anchors, axis=1)
        found_classes = jnp.where(real, classes, 0)
    rows = found_anchors if boxes.ndim == 3 else end.indices
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
    boxes: BoxesOfClasses, clip_window: Real[ArrayLike, "B 4"] | None, keep_empty: bool | None
) -> tuple[BoxesOfClasses, VisibleOfClasses]:
    """Returns the clipped boxes, and which can be a detection."""
    if keep_empty is None:
        keep_empty = clip_window is None
    if clip_window is not None:
        boxes = clip_to_window(boxes, _beside(clip_window, boxes))
    return boxes, jnp.ones(boxes.shape[:-1], bool) if keep_empty else area(boxes) > 0.0


def _beside(
    windows: Real[ArrayLike, "B 4"], boxes: Float32[Array, "B ... 4"]
) -> Float32[Array, "B ... 4"]:
    """Returns windows in a shape that broadcasts with boxes."""
    windows = jnp.asarray(windows, jnp.float32)
    return jnp.expand_dims(windows, tuple(range(1, boxes.ndim - 1)))
