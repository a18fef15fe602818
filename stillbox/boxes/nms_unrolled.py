"""The search of suppression without loops, in operations of TensorFlow Lite.

It stands alone beside `nms`. XLA fuses operations; TensorFlow Lite runs them one by one, and the
time depends on their number.
"""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32, Shaped

from stillbox.boxes.geometry import area, intersection
from stillbox.boxes.nms_prefix import (
    BoxesOfClasses,
    NmsResult,
    SearchLimits,
    VisibleOfClasses,
    sorted_candidates,
    top_k,
)

_LEAST_ANCHORS, _ANCHORS_PER_DETECTION = 2000, 20
"""Anchors that are searched at least, and for each of `max_total` detections. For the at most
100 detections of each of fifty photographs, an SSD MobileNet v2 with FPNLite needed at most 655 of
its 12,804, and `gfl_mobile` 737 of its 2,100."""
_FEW_CLASSES = 20
"""With more classes the search keeps marks of dropped boxes in place of changed scores."""


def searched_anchors(max_total: int) -> int:
    """Returns how many anchors at most are searched for the detections of an image."""
    return max(_ANCHORS_PER_DETECTION * max_total, _LEAST_ANCHORS)


def search_unrolled(
    boxes: BoxesOfClasses,
    visible: VisibleOfClasses,
    scores: Float32[Array, "B A C"],
    limits: SearchLimits,
) -> NmsResult:
    """Does what `nms.search` does, by one group of operations for every detection of an image.

    Of boxes that all classes share, the 2,000 with the best scores are searched, or 20 for each of
    `max_total` detections if that is more. Boxes that are not visible neither suppress others nor
    count in their class.
    """
    images = zip(boxes, visible, scores, strict=True)
    return NmsResult(
        *map(jnp.stack, zip(*(_search(*image, limits) for image in images), strict=True))
    )


def _search(
    boxes: Float32[Array, "*C A 4"],
    visible: Bool[Array, "*C A"],
    scores: Float32[Array, "A C"],
    limits: SearchLimits,
) -> tuple[Int32[Array, "K"], Float32[Array, "K"], Int32[Array, ""]]:
    anchors = scores.shape[0]
    most = searched_anchors(limits.max_total)
    rows = jnp.arange(anchors)
    if boxes.ndim == 2 and anchors > most:
        rows = _best_rows(jnp.where(visible, scores.max(axis=-1), -jnp.inf), most)
        boxes, visible, scores = (_at(array, rows) for array in (boxes, visible, scores))
    of_classes = scores.T
    candidates = jnp.where(visible & (of_classes > limits.score_threshold), of_classes, -jnp.inf)
    if 0 < limits.max_candidates_per_class < rows.size:
        candidates = sorted_candidates(candidates, limits.max_candidates_per_class)
    found_classes, found_rows, found_scores = _picks(boxes, candidates, limits)
    real = found_scores > -jnp.inf
    indices = jnp.where(real, found_classes * anchors + _at(rows, found_rows), 0)
    return indices, jnp.where(real, found_scores, 0.0), jnp.sum(real, dtype=jnp.int32)


def _best_rows(best: Float32[Array, "A"], most: int) -> Int32[Array, "{most}"]:
    """Returns the indices of the greatest values, rising: of equal scores the first is picked."""
    _, rows = top_k(best, most)
    # The converter turns a `top_k` into a sort, which LiteRT lacks, if its places are not used.
    _, order = top_k(-rows.astype(jnp.float32), most)
    return _at(rows, order)


def _picks(
    boxes: Float32[Array, "*C A 4"], left: Float32[Array, "C A"], limits: SearchLimits
) -> tuple[Int32[Array, "K"], Int32[Array, "K"], Float32[Array, "K"]]:
    """Returns class, row and score of the picks, minus infinity behind the last one.

    Args:
        left: the scores of the candidates, minus infinity elsewhere.
    """
    nearest, best = jnp.argmax(left, axis=-1).astype(jnp.int32), left.max(axis=-1)
    room = jnp.full(best.shape, limits.max_per_class, jnp.int32)
    # The arrays of all classes are copied for each pick, and marks are a quarter of the scores.
    marks = best.size > _FEW_CLASSES and limits.soft_sigma == 0.0
    dropped = jnp.zeros(left.shape, bool)
    picks = []
    for _ in range(limits.max_total):
        class_, score = _argmax(best), best.max()
        row = _at(nearest, class_)
        picks.append((class_, row, score))
        class_boxes = boxes if boxes.ndim == 2 else _at(boxes, class_)
        overlaps, scores = _overlaps(_at(class_boxes, row), class_boxes, limits), _at(left, class_)
        # The pick is dropped by index: a box without area does not overlap even itself.
        if marks:
            over = _with(limits.exceeded(overlaps) | _at(dropped, class_), row, jnp.bool_(True))
            scores = jnp.where(over, -jnp.inf, scores)
            dropped = _with(dropped, class_, over)
        else:
            scores = _with(limits.suppressed(scores, overlaps), row, jnp.float32(-jnp.inf))
            left = _with(left, class_, scores)
        place = _argmax(scores)
        following = _at(scores, place)
        if limits.max_per_class < limits.max_total:
            rest = _at(room, class_) - 1
            room = _with(room, class_, rest)
            following = jnp.where(rest > 0, following, -jnp.inf)
        nearest, best = _with(nearest, class_, place), _with(best, class_, following)
    found_classes, found_rows, found_scores = map(jnp.stack, zip(*picks, strict=True))
    return found_classes, found_rows, found_scores


def _overlaps(
    box: Float32[Array, "4"], boxes: Float32[Array, "A 4"], limits: SearchLimits
) -> Float32[Array, "A"]:
    """Returns the IoUs with a box.

    They equal `geometry.iou` but for boxes without area, which give 0 / 0, NaN. A threshold above 0
    drops neither NaN nor 0; with other limits NaN becomes 0.
    """
    shared = intersection(box, boxes)
    overlaps = shared / (area(box) + area(boxes) - shared)
    if limits.soft_sigma > 0.0 or limits.iou_threshold <= 0.0:
        return jnp.where(shared == 0.0, 0.0, overlaps)
    return overlaps


def _argmax(values: Float32[Array, "N"]) -> Int32[Array, ""]:
    return jnp.int32(0) if values.size == 1 else jnp.argmax(values).astype(jnp.int32)


def _at(array: Shaped[Array, "N *rest"], index: Int32[Array, "..."]) -> Shaped[Array, "..."]:
    if array.shape[0] == 1 and index.ndim == 0:
        return array[0]
    return array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _with(
    array: Shaped[Array, "N *rest"], index: Int32[Array, ""], row: Shaped[Array, "*rest"]
) -> Shaped[Array, "N *rest"]:
    """Returns `array` with `row` at `index`."""
    if array.shape[0] == 1:
        return row[None]
    # Without a scatter, which TensorFlow Lite lacks.
    start: tuple[Array | int, ...] = (index, *([0] * row.ndim))
    return lax.dynamic_update_slice(array, row[None], start, allow_negative_indices=False)
