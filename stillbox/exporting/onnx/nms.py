"""The search of non-maximum suppression as ONNX: `stillbox.boxes.nms.search`."""

from typing import NamedTuple

import numpy as np

from stillbox.boxes.nms_prefix import SearchLimits
from stillbox.errors import UserError
from stillbox.exporting.onnx.graph import (
    FLOAT,
    INT32,
    INT64,
    Constant,
    Graph,
    NetworkWriter,
    Operand,
    Tensor,
    Value,
    identity,
)
from stillbox.models.jaxpr import Equation

_OUT = np.array(-np.inf, np.float32)
_ZERO = np.array(0, np.float32)
_FIRST = 10
"""Boxes in the first search, for each of `max_total` detections."""


def search(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> list[Value]:
    """Writes the operation `nms_search.SEARCH`.

    Raises:
        UserError: the suppression is soft.
    """
    limits: SearchLimits = equation.params["limits"]
    if limits.soft_sigma > 0:
        problem = "an ONNX artefact cannot fade scores by overlap"
        fix = "export it as saved_model or stablehlo, or set it to 0"
        raise UserError(problem, where="soft_sigma of the model's nms", fix=fix)
    boxes, visible, scores = (
        None
        if isinstance(value, Constant) and value.array.dtype == bool and value.array.all()
        else writer.name(value, identity(variable.aval.ndim))
        for value, variable in zip(inputs, equation.invars, strict=True)
    )
    assert boxes is not None
    assert scores is not None
    _, anchors, classes = equation.invars[2].aval.shape
    names = _Suppression(writer.graph, limits, anchors, classes).add(
        boxes, visible, scores, per_class=equation.invars[0].aval.ndim == 4
    )
    ranks = [variable.aval.ndim for variable in equation.outvars]
    return [Tensor(name, identity(rank)) for name, rank in zip(names, ranks, strict=True)]


class _Found(NamedTuple):
    """Names of the K best of each image; missing ones have the score minus infinity, in any row."""

    scores: str
    """`[B, K]` float32."""
    classes: str
    """`[B, K]` int64."""
    rows: str
    """`[B, K]` int64, among the searched boxes."""


class _Suppression:
    """Writes one search among A = `anchors` boxes of C = `classes`."""

    def __init__(self, graph: Graph, limits: SearchLimits, anchors: int, classes: int) -> None:
        self.graph, self.nms, self.anchors, self.classes = graph, limits, anchors, classes

    def add(
        self, boxes: str, visible: str | None, scores: str, *, per_class: bool
    ) -> tuple[str, str, str]:
        """Returns the names of class * A + anchor, of scores, and of counts.

        Args:
            boxes: `[B, A, 4]`, or `[B, C, A, 4]` for boxes of each class.
            visible: the same without the last axis; None: all are.
            scores: `[B, A, C]`.
        """
        graph = self.graph
        if per_class:
            boxes = graph.op("Transpose", boxes, perm=[0, 2, 1, 3])
            visible = visible and graph.op("Transpose", visible, perm=[0, 2, 1])
        self.per_class = per_class
        best, classes, rows = self._find(boxes, scores, visible)
        real = graph.op("Greater", best, _OUT)
        place = graph.op("Add", graph.op("Mul", classes, np.array(self.anchors)), rows)
        place = graph.op("Where", real, place, np.array(0))
        marks = graph.op("Cast", real, to=INT32)
        return (
            graph.op("Cast", place, to=INT32),
            graph.op("Where", real, best, _ZERO),
            graph.op("ReduceSum", marks, np.array([1]), keepdims=0),
        )

    def _find(self, boxes: str, scores: str, visible: str | None) -> _Found:
        """Searches the anchors with the best scores, and all of them only if those do not suffice.

        Greedy suppression goes by descending score, so lower scores do not change its result above
        a score. Anchors outside the first search have no score above `least`.
        """
        graph, nms = self.graph, self.nms
        threshold = np.array(nms.score_threshold, np.float32)
        few = _FIRST * nms.max_total
        if nms.max_candidates_per_class:
            few = min(few, nms.max_candidates_per_class)
        if few >= self.anchors:
            return self._search(graph, self.anchors, boxes, scores, visible, threshold)
        best = graph.op("ReduceMax", scores, np.array([2]), keepdims=0)
        names = (None, None)
        values, places = graph.ops("TopK", best, np.array([few]), names=names, axis=1)
        least = graph.op("ReduceMin", values, np.array([1]))
        # The anchors get their own order again: of equal scores the lower anchor comes first.
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

    def _more(self, least: str, picked: str) -> str:
        """Returns whether an image has fewer than `max_total` detections, and candidates left."""
        graph, nms = self.graph, self.nms
        last = graph.op("ReduceMin", picked, np.array([1]))
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
            length: N.
            boxes: `[B, N, 4]`, or `[B, N, C, 4]` for boxes of each class.
            scores: `[B, N, C]`.
            visible: the boxes that can be a detection, without the last axis; None: all.
            threshold: of the scores, exclusive; a number or `[B, 1, 1]`.
        """
        nms = self.nms
        scores = graph.op("Transpose", scores, perm=[0, 2, 1])
        above = graph.op("Greater", scores, threshold)
        scores = self._limited(graph, length, graph.op("Where", above, scores, _OUT), above)
        overlap = np.float32(nms.iou_threshold)
        if nms.drop_at_threshold:
            overlap = np.nextafter(overlap, np.float32(-1))
        if self.per_class:
            # One class of one image after the other, as images of a single class.
            boxes = graph.op("Transpose", boxes, perm=[0, 2, 1, 3])
            boxes = graph.op("Reshape", boxes, np.array([-1, length, 4]))
            scores = graph.op("Reshape", scores, np.array([-1, 1, length]))
            if visible is not None:
                visible = graph.op("Transpose", visible, perm=[0, 2, 1])
                visible = graph.op("Reshape", visible, np.array([-1, length]))
        limits = (
            np.array([nms.max_per_class]),
            np.array([overlap]),
            np.array([nms.score_threshold], "f"),
        )
        kept = graph.op("NonMaxSuppression", boxes, scores, *limits)
        values = graph.op("GatherND", scores, kept)
        if visible is not None:
            where = graph.op("Gather", kept, np.array([0, 2]), axis=1)
            values = graph.op("Where", graph.op("GatherND", visible, where), values, _OUT)
        left = graph.op("ScatterND", self._nothing(graph, scores), kept, values)
        left = graph.op("Reshape", left, np.array([-1, self.classes * length]))
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
