"""Suppression among the best candidates of an image, which mostly are enough.

It stands alone beside `nms`, which searches on where the prefix is not enough.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from stillbox.boxes.geometry import iou
from stillbox.lowering import current_lowering

_CHUNK = 64
"""Candidates that one round decides."""


class SearchLimits(NamedTuple):
    """The settings of a search."""

    score_threshold: float
    """Only scores strictly above are candidates."""
    iou_threshold: float
    """A box is dropped if it overlaps a better one of its class by more."""
    max_per_class: int
    """Most boxes of a class, counted before clipping drops any."""
    max_total: int
    """Most boxes of an image, the K of the result."""
    drop_at_threshold: bool = False
    """Drop a box that overlaps a better one by exactly the threshold too."""
    soft_sigma: float = 0.0
    """Above 0, no box is dropped for its overlap. Each pick multiplies the scores of its class by
    `exp(-iou^2 / (2 soft_sigma))` instead, and a box is dropped when its score falls to
    `score_threshold` (arXiv:1704.04503). Scores must not be negative."""
    max_candidates_per_class: int = 0
    """Only so many boxes of a class, the best, are candidates; 0: all."""

    def exceeded(self, overlaps: Float32[Array, "*B"]) -> Bool[Array, "*B"]:
        """Marks the overlaps for which a box is dropped, unless the search is soft."""
        most = self.iou_threshold
        return overlaps >= most if self.drop_at_threshold else overlaps > most

    def suppressed(
        self, scores: Float32[Array, "*B"], overlaps: Float32[Array, "*B"]
    ) -> Float32[Array, "*B"]:
        """Returns the scores of a class, given the overlaps with a pick.

        Dropped boxes have minus infinity.
        """
        if self.soft_sigma > 0.0:
            decayed = scores * jnp.exp(overlaps * overlaps * (-0.5 / self.soft_sigma))
            # Minus infinity times 0 is NaN, and dropped boxes stay dropped.
            return jnp.where(decayed > self.score_threshold, decayed, -jnp.inf)
        return jnp.where(self.exceeded(overlaps), -jnp.inf, scores)


class NmsResult(NamedTuple):
    """Boxes in the order in which a search has picked them, zeros behind them."""

    indices: Int32[Array, "B K"]
    """Class * A + anchor of each detection."""
    scores: Float32[Array, "B K"]
    """Falling."""
    count: Int32[Array, "B"]  # type: ignore[assignment]  # hides tuple.count


class Candidates(NamedTuple):
    """The N best candidates of each image, in the order of a search."""

    scores: Float32[Array, "B N"]
    """Falling; minus infinity behind the last candidate."""
    classes: Int32[Array, "B N"]
    anchors: Int32[Array, "B N"]
    complete: Bool[Array, "B"]
    """There are no others."""


class _Boxes(NamedTuple):
    """Boxes of candidates; those behind the last candidate are of class -1."""

    corners: Float32[Array, "B N 4"]
    classes: Int32[Array, "B N"]

    def padded(self) -> "_Boxes":
        """Returns whole chunks, at least one of them empty."""
        size = self.classes.shape[1]
        more = (size // _CHUNK + 2) * _CHUNK - size
        corners = jnp.pad(self.corners, ((0, 0), (0, more), (0, 0)))
        return _Boxes(corners, jnp.pad(self.classes, ((0, 0), (0, more)), constant_values=-1))

    def part(self, start: Int32[Array, ""]) -> "_Boxes":
        """Returns one chunk."""
        return _Boxes(*(lax.dynamic_slice_in_dim(array, start, _CHUNK, axis=1) for array in self))

    def marked(self, marks: Bool[Array, "B N"], most: int) -> "_Boxes":
        """Returns the first `most` of the marked ones."""
        places, real = _first(marks, most)
        corners = jnp.take_along_axis(self.corners, places[..., None], axis=1)
        classes = jnp.take_along_axis(self.classes, places, axis=1)
        return _Boxes(corners, jnp.where(real, classes, -1))


class _State(NamedTuple):
    """State of a suppression between two chunks."""

    start: Int32[Array, ""]
    """The index at which the next chunk starts."""
    kept: Bool[Array, "B N"]
    """Boxes that no better one suppresses and that their class has room for."""


BoxesOfClasses = Float32[Array, "B A 4"] | Float32[Array, "B C A 4"]
"""Boxes that all classes share, or boxes of each class."""
VisibleOfClasses = Bool[Array, "B A"] | Bool[Array, "B C A"]
"""Which of them can be a detection."""


def search_prefix(
    boxes: BoxesOfClasses,
    visible: VisibleOfClasses,
    scores: Float32[Array, "B A C"],
    limits: SearchLimits,
    depth: int,
) -> tuple[NmsResult, Bool[Array, "B"]]:
    """Searches the best candidates of each image instead of all.

    Greedy suppression goes by descending score: its result above a score does not depend on lower
    ones.

    Args:
        limits: of the search, which is not soft.
        depth: candidates for each of `max_total` detections.

    Returns:
        What it finds, and whether a search among all boxes would find no more.
    """
    _, anchors, classes = scores.shape
    most = min(depth * limits.max_total, anchors * classes)
    candidates = best_candidates(scores, limits.score_threshold, most)
    return suppress_candidates(boxes, visible, candidates, classes, limits)


def best_candidates(scores: Float32[Array, "B A C"], threshold: float, most: int) -> Candidates:
    """Returns the best candidates; of equal ones, the lower class, then the lower anchor.

    The scores are read once, for the best of each anchor. Anchors that are left out have no score
    above `least`, the last of those that are kept. Candidates of that score are left out, since
    others of it, in lower classes, may be.

    Args:
        threshold: candidates are strictly above.
        most: the number of candidates.
    """
    _, anchors, classes = scores.shape
    least = jnp.full(scores.shape[:1], -jnp.inf)
    rows = None
    if anchors > most:
        best = scores.max(axis=-1)
        # NaN hides the other scores of its anchor.
        best = jnp.where(best > threshold, best, jnp.where(jnp.isnan(best), jnp.inf, -jnp.inf))
        best, rows = top_k(best, most)
        least = best.min(axis=-1)
        rows = jnp.sort(rows, axis=-1)
        scores = jnp.take_along_axis(scores, rows[..., None], axis=1)
    kept = scores.shape[1]
    scores = jnp.where(scores > threshold, scores, -jnp.inf).swapaxes(1, 2)
    scores, places = top_k(scores.reshape(scores.shape[0], kept * classes), most)
    if most < kept * classes:
        least = jnp.maximum(least, scores.min(axis=-1))
    found_classes, found_anchors = jnp.divmod(places, kept)
    return Candidates(
        scores=jnp.where(scores > least[:, None], scores, -jnp.inf),
        classes=found_classes,
        anchors=found_anchors if rows is None else jnp.take_along_axis(rows, found_anchors, axis=1),
        complete=least == -jnp.inf,
    )


def suppress_candidates(
    boxes: BoxesOfClasses,
    visible: VisibleOfClasses,
    candidates: Candidates,
    classes: int,
    limits: SearchLimits,
) -> tuple[NmsResult, Bool[Array, "B"]]:
    """Returns the detections among candidates, and whether the image has no others.

    `classes` is C; for the other arguments see `search_prefix`.
    """
    batch, anchors = boxes.shape[0], boxes.shape[-2]
    numbers = candidates.classes * anchors + candidates.anchors
    rows = numbers if boxes.ndim == 4 else candidates.anchors
    corners = jnp.take_along_axis(boxes.reshape(batch, -1, 4), rows[..., None], axis=1)
    labels = jnp.where(candidates.scores > -jnp.inf, candidates.classes, -1)
    listed = _Boxes(corners, labels).padded()
    shown = jnp.take_along_axis(visible.reshape(batch, -1), rows, axis=1)
    shown = jnp.pad(shown, ((0, 0), (0, listed.classes.shape[1] - rows.shape[1])))
    # Each chunk is compared with room for so many.
    most = min(limits.max_total, classes * limits.max_per_class, numbers.shape[1])
    room = most + _CHUNK

    def left(state: _State) -> Bool[Array, "B"]:
        return listed.part(state.start).classes[:, 0] >= 0

    def enough(state: _State) -> Bool[Array, "B"]:
        detections = jnp.sum(state.kept & shown, axis=1)
        full = jnp.sum(state.kept, axis=1) >= classes * limits.max_per_class
        return (detections >= limits.max_total) | full

    def more(state: _State) -> Bool[Array, ""]:
        # Invisible boxes are kept without being detections, so that there may be more than fit.
        fits = jnp.sum(state.kept, axis=1) <= room
        return jnp.any(left(state) & ~enough(state)) & jnp.all(fits)

    def decide(state: _State) -> _State:
        before = listed.marked(state.kept, room)
        kept = _keep(_candidates_of(listed, state.start, limits), before, limits)
        every = lax.dynamic_update_slice_in_dim(state.kept, kept, state.start, axis=1)
        return _State(state.start + _CHUNK, every)

    end = lax.while_loop(more, decide, _State(jnp.int32(0), jnp.zeros(shown.shape, bool)))
    places, real = _first(end.kept & shown, limits.max_total)
    result = NmsResult(
        jnp.where(real, jnp.take_along_axis(numbers, places, axis=1), 0),
        jnp.where(real, jnp.take_along_axis(candidates.scores, places, axis=1), 0.0),
        jnp.sum(real, axis=1, dtype=jnp.int32),
    )
    return result, enough(end) | (candidates.complete & ~left(end))


def _candidates_of(listed: _Boxes, start: Int32[Array, ""], limits: SearchLimits) -> _Boxes:
    """Returns the chunk at `start`, without what exceeds the limit of candidates of a class."""
    chunk, limit = listed.part(start), limits.max_candidates_per_class
    size = listed.classes.shape[1]
    if not 0 < limit < size:
        return chunk
    earlier = jnp.arange(size)[:, None] < start + jnp.arange(_CHUNK)
    rank = jnp.sum(_same_class(listed, chunk) & earlier, axis=1)
    return chunk._replace(classes=jnp.where(rank < limit, chunk.classes, -1))


def _keep(chunk: _Boxes, before: _Boxes, limits: SearchLimits) -> Bool[Array, "B N"]:
    """Marks the boxes of a chunk that are kept, given those that are kept before it."""
    earlier = jnp.arange(_CHUNK)[:, None] < jnp.arange(_CHUNK)
    open_ = (chunk.classes >= 0) & ~jnp.any(_over(before, chunk, limits), axis=1)
    kept = _undominated(open_, _over(chunk, chunk, limits) & earlier)
    same = _same_class(chunk, chunk) & earlier & kept[:, :, None]
    picks = jnp.sum(_same_class(before, chunk), axis=1) + jnp.sum(same, axis=1)
    return kept & (picks < limits.max_per_class)


def _undominated(open_: Bool[Array, "B N"], over: Bool[Array, "B N N"]) -> Bool[Array, "B N"]:
    """Marks the boxes that greedy suppression keeps among themselves.

    A box is kept if no kept one suppresses it. Each repetition of that for all boxes settles at
    least one more of them, mostly all.

    Args:
        open_: boxes that may be kept.
        over: the first suppresses the second, which is a later one.
    """

    def again(state: tuple[Array, Array]) -> tuple[Array, Array]:
        kept = open_ & ~jnp.any(over & state[0][:, :, None], axis=1)
        return kept, jnp.any(kept != state[0])

    return lax.while_loop(lambda state: state[1], again, (open_, jnp.bool_(True)))[0]


def _over(boxes: _Boxes, others: _Boxes, limits: SearchLimits) -> Bool[Array, "B N M"]:
    """Returns which of N boxes suppress which of M others if they are kept."""
    overlap = iou(boxes.corners[:, :, None], others.corners[:, None])
    return limits.exceeded(overlap) & _same_class(boxes, others)


def _same_class(boxes: _Boxes, others: _Boxes) -> Bool[Array, "B N M"]:
    return boxes.classes[:, :, None] == others.classes[:, None]


def _first(
    marked: Bool[Array, "B N"], most: int
) -> tuple[Int32[Array, "B {most}"], Bool[Array, "B {most}"]]:
    """Returns the places of the first marked ones, and which are real."""
    size = marked.shape[1]
    # A sort of integers would be slower.
    order = jnp.where(marked, size - jnp.arange(size, dtype=jnp.float32), 0.0)
    order = jnp.pad(order, ((0, 0), (0, max(most - size, 0))))
    order, places = top_k(order, most)
    return places, order > 0.0


def sorted_candidates(
    candidates: Float32[Array, "*B A"], most: int, dropped: float = -jnp.inf
) -> Float32[Array, "*B A"]:
    """Sets all but the best `most` of each row to `dropped`; of equal ones the first are kept."""
    scores, places = top_k(candidates, most)
    least, last = scores[..., -1:], places[..., -1:]
    earlier = jnp.arange(candidates.shape[-1]) <= last
    kept = (candidates > least) | ((candidates == least) & earlier)
    return jnp.where(kept, candidates, dropped)


def top_k(
    values: Float32[Array, "*B N"], most: int
) -> tuple[Float32[Array, "*B {most}"], Int32[Array, "*B {most}"]]:
    """Returns the greatest values of each row, which are not NaN, falling, and their places.

    Of equal ones the first come first.
    """
    if current_lowering().top_k == "operation":
        greatest, places = lax.top_k(values, most)
        return greatest, places
    greatest, places = _top_k_by_sorting(values.reshape(-1, values.shape[-1]), most)
    shape = (*values.shape[:-1], most)
    return greatest.reshape(shape), places.reshape(shape)


def _top_k_by_sorting(
    values: Float32[Array, "B N"], most: int
) -> tuple[Float32[Array, "B {most}"], Int32[Array, "B {most}"]]:
    """Does the same with two sorts, which together are shorter than one of all values.

    The first takes the best of each group of neighbours, the second all of the groups that are
    among the best.
    """
    width = math.isqrt(values.shape[1] // most)
    if width <= 1:
        return _sorted(values, _places(values), most)
    # Padding is never among the first `most`, since it comes last of its equals.
    values = jnp.pad(values, ((0, 0), (0, -values.shape[1] % width)), constant_values=-jnp.inf)
    best = values.reshape(values.shape[0], -1, width).max(axis=-1)
    _, groups = _sorted(best, _places(best), most)
    places = (groups[:, :, None] * width + jnp.arange(width)).reshape(values.shape[0], -1)
    return _sorted(jnp.take_along_axis(values, places, axis=1), places, most)


def _places(values: Float32[Array, "B N"]) -> Int32[Array, "B N"]:
    return lax.broadcasted_iota(jnp.int32, values.shape, 1)


def _sorted(
    values: Float32[Array, "B N"], places: Int32[Array, "B N"], most: int
) -> tuple[Float32[Array, "B {most}"], Int32[Array, "B {most}"]]:
    """Returns the greatest values, falling, with their places; of equal ones the lowest place."""
    low, places = lax.sort((-values, places), num_keys=2)
    return -low[:, :most], places[:, :most]
