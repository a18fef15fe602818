"""Non-maximum suppression as an ONNX graph: the results of `stillbox.boxes.nms.batched_nms`."""

from typing import NamedTuple

import numpy as np

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.onnx.graph import FLOAT, INT64, Graph, Operand

_OUT = np.array(-np.inf, np.float32)
_ZERO = np.array(0, np.float32)
_FIRST = 10
"""Anchors in the first search, for each of `max_total` detections."""


class Picked(NamedTuple):
    """Names of the detections: K rows for each image, best first, the rest zeros."""

    boxes: str
    """`[B, K, 4]` float32."""
    scores: str
    """`[B, K]` float32."""
    classes: str
    """`[B, K]` int64."""
    anchors: str
    """`[B, K]` int64."""
    real: str
    """`[B, K]` bool, false for padding."""
    counts: str
    """`[B]` int64."""


def add_suppression(
    graph: Graph, model: schema.OneStage, anchors: int, boxes: str, scores: str, true_size: Operand
) -> Picked:
    """Writes non-maximum suppression into a graph.

    Args:
        graph: nodes are appended to it.
        model: the detector's configuration.
        anchors: A.
        boxes: `[B, A, 4]`, normalised to the network input and not clipped.
        scores: `[B, A, num_classes]`.
        true_size: `[2]` float32, height and width of the images proper.

    Raises:
        UserError: the configuration has soft suppression.
    """
    if model.postprocessing.nms.soft_sigma > 0:
        raise UserError(
            "an ONNX artefact cannot fade scores by overlap",
            where="model.postprocessing.nms.soft_sigma",
            fix="export it as saved_model or stablehlo, or set it to 0",
        )
    return _Suppression(graph, model, anchors).add(boxes, scores, true_size)


class _Found(NamedTuple):
    """Names of the K best of each image; missing ones have the score minus infinity, in any row."""

    scores: str
    """`[B, K]` float32."""
    classes: str
    """`[B, K]` int64."""
    rows: str
    """`[B, K]` int64, among the searched boxes."""


class _Suppression:
    """Writes suppression for one model."""

    def __init__(self, graph: Graph, model: schema.OneStage, anchors: int) -> None:
        self.graph, self.anchors = graph, anchors
        self.nms = model.postprocessing.nms
        self.size = np.array(model.resizer.input_size, np.float32)
        self.classes = 1 if self.nms.class_agnostic else model.num_classes

    def add(self, boxes: str, scores: str, true_size: Operand) -> Picked:
        graph, nms = self.graph, self.nms
        ends = graph.op("Unsqueeze", graph.op("Div", true_size, self.size), np.array([0, 1]))
        shown, visible = self._clip(boxes, ends)
        best, classes, anchors = self._find(shown if nms.clip_first else boxes, scores, visible)
        real = graph.op("Greater", best, _OUT)
        anchors = graph.op("Where", real, anchors, np.array(0))
        at = graph.op("Unsqueeze", anchors, np.array([2]))
        if nms.class_agnostic:
            rows = graph.op("GatherND", scores, at, batch_dims=1)
            classes = graph.op("ArgMax", rows, axis=2, keepdims=0)
        found = graph.op("GatherND", shown, at, batch_dims=1)
        if nms.change_coordinate_frame:
            found = graph.op("Div", found, graph.op("Concat", ends, ends, axis=2))
        marks = graph.op("Cast", real, to=INT64)
        return Picked(
            boxes=graph.op("Where", graph.op("Unsqueeze", real, np.array([2])), found, _ZERO),
            scores=graph.op("Where", real, best, _ZERO),
            classes=graph.op("Where", real, classes, np.array(0)),
            anchors=anchors,
            real=real,
            counts=graph.op("ReduceSum", marks, np.array([1]), keepdims=0),
        )

    def _clip(self, boxes: str, ends: str) -> tuple[str, str | None]:
        """Returns the clipped boxes, and a mask `[B, A]` of those with an area; None: all."""
        graph, nms = self.graph, self.nms
        if not nms.clip:
            return boxes, None
        whole = nms.combined or nms.clip_to == "input"
        high: Operand = np.ones((1, 1, 2), np.float32) if whole else ends
        if nms.clip_margin:
            high = graph.op("Sub", high, np.float32(nms.clip_margin) / self.size)
        clipped = graph.op("Max", boxes, _ZERO)
        clipped = graph.op("Min", clipped, graph.op("Concat", high, high, axis=2))
        if nms.combined:
            return clipped, None
        near, far = graph.ops("Split", clipped, np.array([2, 2]), names=(None, None), axis=2)
        area = graph.op("ReduceProd", graph.op("Sub", far, near), np.array([2]), keepdims=0)
        return clipped, graph.op("Greater", area, _ZERO)

    def _find(self, boxes: str, scores: str, visible: str | None) -> _Found:
        """Searches the anchors with the best scores, and all of them only if those do not suffice.

        Greedy suppression goes by descending score, so that its result above a score does not
        depend on lower scores. Anchors outside the first search have no score above `least`.
        """
        graph, nms = self.graph, self.nms
        threshold = np.array(nms.score_threshold, np.float32)
        few = _FIRST * nms.max_total
        if nms.max_candidates_per_class:
            few = min(few, nms.max_candidates_per_class)
        if nms.class_agnostic:
            scores = graph.op("ReduceMax", scores, np.array([2]), keepdims=1)
        if few >= self.anchors:
            return self._search(graph, self.anchors, boxes, scores, visible, threshold)
        best = graph.op("ReduceMax", scores, np.array([2]), keepdims=0)
        names = (None, None)
        values, places = graph.ops("TopK", best, np.array([few]), names=names, axis=1)
        least = graph.op("ReduceMin", values, np.array([1]))
        # Back in anchor order: of equal scores the lower anchor comes first.
        _, ranks = graph.ops("TopK", places, np.array([few]), names=names, axis=1, largest=0)
        places = graph.op("GatherElements", places, ranks, axis=1)
        at = graph.op("Unsqueeze", places, np.array([2]))
        boxes_, scores_ = (
            graph.op("GatherND", array, at, batch_dims=1) for array in (boxes, scores)
        )
        visible_ = visible and graph.op("GatherND", visible, at, batch_dims=1)
        floor = graph.op("Unsqueeze", graph.op("Max", least, threshold), np.array([2]))
        first = self._search(graph, few, boxes_, scores_, visible_, floor)
        first = first._replace(rows=graph.op("GatherElements", places, first.rows, axis=1))
        branch = graph.branch()
        every = self._search(branch, self.anchors, boxes, scores, visible, threshold)
        return _Found(*graph.either(self._more(least, first.scores), branch, every, first))

    def _more(self, least: str, found: str) -> str:
        """Returns whether an image has fewer than `max_total` detections, and candidates left."""
        graph, nms = self.graph, self.nms
        last = graph.op("ReduceMin", found, np.array([1]))
        open_ = graph.op("Equal", last, _OUT)
        left = graph.op("Greater", least, np.array(nms.score_threshold, np.float32))
        marks = graph.op("Cast", graph.op("And", open_, left), to=INT64)
        return graph.op("Greater", graph.op("ReduceMax", marks, keepdims=0), np.array(0))

    def _search(
        self,
        graph: Graph,
        length: int,
        boxes: str,
        scores: str,
        visible: str | None,
        threshold: Operand,
    ) -> _Found:
        """Suppresses class by class and merges the classes.

        Args:
            graph: nodes are appended to it.
            length: N.
            boxes: `[B, N, 4]`.
            scores: `[B, N, C]`.
            visible: `[B, N]`, boxes that can be a detection; None: all.
            threshold: of the scores, exclusive; a number or `[B, 1, 1]`.
        """
        nms = self.nms
        scores = graph.op("Transpose", scores, perm=[0, 2, 1])
        above = graph.op("Greater", scores, threshold)
        scores = self._limited(graph, length, graph.op("Where", above, scores, _OUT), above)
        overlap = np.float32(nms.iou_threshold)
        if nms.drop_at_threshold:
            overlap = np.nextafter(overlap, np.float32(-1))
        per_class = nms.max_total if nms.class_agnostic else nms.max_per_class
        limits = np.array([per_class]), np.array([overlap]), np.array([nms.score_threshold], "f")
        kept = graph.op("NonMaxSuppression", boxes, scores, *limits)
        values = graph.op("GatherND", scores, kept)
        if visible is not None:
            where = graph.op("Gather", kept, np.array([0, 2]), axis=1)
            values = graph.op("Where", graph.op("GatherND", visible, where), values, _OUT)
        left = graph.op("ScatterND", self._nothing(graph, scores), kept, values)
        left = graph.op("Reshape", left, np.array([0, self.classes * length]))
        if missing := max(nms.max_total - self.classes * length, 0):
            left = graph.op("Pad", left, np.array([0, 0, 0, missing]), _OUT)
        names = (None, None)
        best, place = graph.ops("TopK", left, np.array([nms.max_total]), names=names, axis=1)
        rows = graph.op("Mod", place, np.array(length))
        return _Found(best, graph.op("Div", place, np.array(length)), rows)

    def _limited(self, graph: Graph, length: int, scores: str, above: str) -> str:
        """Returns the scores `[B, C, N]`, minus infinity for all but the best of each class."""
        most = self.nms.max_candidates_per_class
        if not most or most >= length:
            return scores
        counts = graph.op("ReduceSum", graph.op("Cast", above, to=FLOAT), np.array([2]))
        crowded = graph.op(
            "Greater", graph.op("ReduceMax", counts, keepdims=0), np.array(most, np.float32)
        )
        branch = graph.branch()
        names = (None, None)
        best, place = branch.ops("TopK", scores, np.array([most]), names=names, axis=2, sorted=0)
        nothing = self._nothing(branch, scores)
        limited = branch.op("ScatterElements", nothing, place, best, axis=2)
        return graph.either(crowded, branch, [limited], [scores])[0]

    def _nothing(self, graph: Graph, like: str) -> str:
        return graph.op("Expand", _OUT, graph.op("Shape", like))
