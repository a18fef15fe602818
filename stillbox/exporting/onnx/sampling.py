"""Resizing in ONNX operators that give TensorFlow 1's pixels: `stillbox.inputs.interpolation`.

The operator `Resize` divides by the scale where TensorFlow multiplies by its inverse, rounds uint8
images and has no area mode; its antialias filter differs between runtimes.
"""

from collections.abc import Callable

import numpy as np

from stillbox.exporting.onnx.antialias import add_antialias
from stillbox.exporting.onnx.graph import FLOAT, INT64, Graph, Operand

_ONE = np.array(1, np.float32)
_HALF = np.array(0.5, np.float32)
# As in stillbox/inputs/interpolation.py.
_CUBIC_STEPS = np.array(1024, np.float32)
_CUBIC_A = -0.75


def add_resize(
    graph: Graph,
    images: str,
    size: Operand,
    new_size: Operand,
    method: str,
    *,
    align_corners: bool,
    uint8: bool,
) -> str:
    """Writes one method of resizing into a graph.

    Args:
        graph: nodes are appended to it.
        images: name of images `[B, h, w, 3]`, uint8 or float32.
        size: `[2]` float32, h and w.
        new_size: `[2]` float32, height and width of the result.
        method: one of `stillbox.inputs.interpolation.METHODS`.
        align_corners: first and last pixels of image and result coincide.
        uint8: the type of the images.

    Returns:
        Name of the result, float32 or, of uint8 images, possibly uint8.
    """
    if method == "bilinear_antialias":
        return add_antialias(graph, images, size, new_size, uint8=uint8)
    axes = [_Axis(graph, size, new_size, axis, align_corners) for axis in (1, 2)]
    if method == "nearest":
        for axis in axes:
            images = graph.op("Gather", images, axis.nearest(), axis=axis.axis)
        return images
    if method == "bilinear":
        return _bilinear(graph, images, axes)
    weights = {"area": _Axis.area_weights, "bicubic": _Axis.cubic_weights}[method]
    return _by_matrices(graph, images, axes, weights)


def _bilinear(graph: Graph, images: str, axes: "list[_Axis]") -> str:
    # Rows are gathered first, since a photograph has many more than the result needs.
    rows, columns = axes
    above, below, row_share = rows.neighbours()
    left, right, column_share = columns.neighbours()
    images = graph.op("Gather", images, graph.op("Concat", above, below, axis=0), axis=1)
    low, high = (
        graph.op("Cast", graph.op("Gather", images, one, axis=2), to=FLOAT) for one in (left, right)
    )
    lines = _between(graph, low, high, column_share)
    upper, lower = graph.ops("Split", lines, names=(None, None), axis=1, num_outputs=2)
    return _between(graph, upper, lower, row_share)


def _between(graph: Graph, low: str, high: str, share: str) -> str:
    difference = graph.op("Sub", high, low)
    return graph.op("Add", graph.op("Mul", difference, share), low)


def _by_matrices(
    graph: Graph, images: str, axes: "list[_Axis]", weights: "Callable[[_Axis], str]"
) -> str:
    planes = graph.op("Transpose", graph.op("Cast", images, to=FLOAT), perm=[0, 3, 1, 2])
    rows, columns = (weights(axis) for axis in axes)
    planes = graph.op("MatMul", rows, planes)
    planes = graph.op("MatMul", planes, graph.op("Transpose", columns, perm=[1, 0]))
    return graph.op("Transpose", planes, perm=[0, 2, 3, 1])


class _Axis:
    """Source positions of the rows (axis 1) or columns (axis 2) of the result."""

    def __init__(
        self, graph: Graph, size: Operand, new_size: Operand, axis: int, align_corners: bool
    ) -> None:
        self.graph, self.axis, self.align_corners = graph, axis, align_corners
        side = np.array(axis - 1)
        self.size, self.new_size = (graph.op("Gather", one, side) for one in (size, new_size))
        self.last = graph.op("Sub", self.size, _ONE)
        self.scale = self._scale()
        zero = np.array(0, np.float32)
        self.steps = graph.op("Range", zero, self.new_size, _ONE)
        self.positions = graph.op("Mul", self.steps, self.scale)

    def _scale(self) -> str:
        graph = self.graph
        scale = graph.op("Div", self.size, self.new_size)
        if not self.align_corners:
            return scale
        new_last = graph.op("Sub", self.new_size, _ONE)
        aligned = graph.op("Div", self.last, graph.op("Max", new_last, _ONE))
        shorter = graph.op("Min", self.size, self.new_size)
        return graph.op("Where", graph.op("Greater", shorter, _ONE), aligned, scale)

    def nearest(self) -> str:
        """Returns the indices `[new]` of the source pixels."""
        graph, position = self.graph, self.positions
        if self.align_corners:
            position = graph.op("Add", position, _HALF)
        return self._index(graph.op("Floor", position))

    def neighbours(self) -> tuple[str, str, str]:
        """Returns the indices `[new]` before and after, and the share of the one after.

        The share has the shape that multiplies this axis of images.
        """
        graph = self.graph
        before = graph.op("Floor", self.positions)
        share = graph.op("Sub", self.positions, before)
        trailing = np.array([1] if self.axis == 2 else [1, 2])
        after = graph.op("Add", before, _ONE)
        return self._index(before), self._index(after), graph.op("Unsqueeze", share, trailing)

    def _index(self, position: str) -> str:
        return self.graph.op("Cast", self.graph.op("Min", position, self.last), to=INT64)

    def area_weights(self) -> str:
        """Returns the share `[new, old]` of each source pixel in each result."""
        graph = self.graph
        next_steps = graph.op("Add", self.steps, _ONE)
        start, end = (
            graph.op("Unsqueeze", one, np.array([1]))
            for one in (self.positions, graph.op("Mul", next_steps, self.scale))
        )
        pixels = graph.op("Range", np.array(0, np.float32), self.size, _ONE)
        # The last pixel has no limit: rounding can put positions beyond it.
        limit = graph.op(
            "Where",
            graph.op("Less", pixels, self.last),
            graph.op("Add", pixels, _ONE),
            np.array(np.inf, np.float32),
        )
        covered = graph.op("Sub", graph.op("Min", limit, end), graph.op("Max", pixels, start))
        return graph.op("Div", graph.op("Relu", covered), self.scale)

    def cubic_weights(self) -> str:
        """Returns the weight `[new, old]` of each source pixel in each result."""
        graph, a = self.graph, _CUBIC_A
        before = graph.op("Floor", self.positions)
        steps = graph.op("Mul", graph.op("Sub", self.positions, before), _CUBIC_STEPS)
        share = graph.op("Div", graph.op("Round", steps), _CUBIC_STEPS)
        pixels = graph.op("Range", np.array(0, np.float32), self.size, _ONE)
        parts = []
        for tap in (-1, 0, 1, 2):
            ends = (share, np.array(tap, np.float32))
            distance = graph.op("Sub", *(ends if tap < 1 else ends[::-1]))
            cubic = (a + 2, -(a + 3), 0.0, 1.0) if tap in (0, 1) else (a, -5 * a, 8 * a, -4 * a)
            weight = self._polynomial(distance, cubic)
            place = graph.op("Add", before, np.array(tap, np.float32))
            place = graph.op("Min", graph.op("Relu", place), self.last)
            here = graph.op("Equal", graph.op("Unsqueeze", place, np.array([1])), pixels)
            column = graph.op("Unsqueeze", weight, np.array([1]))
            parts.append(graph.op("Where", here, column, np.array(0, np.float32)))
        return graph.op("Sum", *parts)

    def _polynomial(self, at: str, factors: tuple[float, ...]) -> str:
        first, *rest = (np.array(one, np.float32) for one in factors)
        value = self.graph.op("Mul", at, first)
        for factor in rest[:-1]:
            value = self.graph.op("Mul", self.graph.op("Add", value, factor), at)
        return self.graph.op("Add", value, rest[-1])
