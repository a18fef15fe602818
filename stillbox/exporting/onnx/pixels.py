"""From images of any size to the network input as an ONNX graph, as `stillbox.inputs.resize`.

The operators give TensorFlow 1's pixels (`stillbox.inputs.interpolation`). The operator `Resize`
divides by the scale where TensorFlow multiplies by its inverse, rounds uint8 images and has no
area mode; its antialias filter differs between runtimes.

Pillow's triangle filter (`stillbox.inputs.interpolation`) is the product of images and a band
matrix. It is computed in blocks of consecutive results, each with the few source pixels in its
band.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.onnx.graph import FLOAT, INT64, Graph, Operand
from stillbox.image_kind import per_channel
from stillbox.inputs.resize import ENLARGE_CANVAS, misfit, resized_size
from stillbox.references import Parameter

_BLOCK = 30
"""Results in a block."""
_HALF_PIXEL = 2**11
"""Pillow's weights have 22 bits. Each half of them gives sums that float32 holds exactly."""


def add_antialias(
    graph: Graph, images: str, size: Operand, new_size: Operand, *, uint8: bool
) -> str:
    """Writes the filter into a graph: columns first, as Pillow does, then rows.

    Args:
        images: name of images `[B, h, w, C]`.
        size: `[2]` float32, h and w.
        new_size: `[2]` float32, height and width of the result.
        uint8: round to whole numbers after either axis, as Pillow does with uint8.

    Returns:
        Name of the result, float32.
    """
    for axis in (1, 0):
        old, new = (
            graph.op("Cast", graph.op("Gather", sides, np.array(axis)), to=INT64)
            for sides in (size, new_size)
        )
        turned = graph.op("Transpose", images, perm=[0, 2, 1, 3]) if axis else images
        turned = _Band(graph, old, new, uint8).resize(turned)
        images = graph.op("Transpose", turned, perm=[0, 2, 1, 3]) if axis else turned
    return images


class _Band:
    """One axis, resized from n = `old` to m = `new` pixels (names of int64 scalars)."""

    def __init__(self, graph: Graph, old: str, new: str, uint8: bool) -> None:
        self.graph, self.old, self.new, self.uint8 = graph, old, new, uint8
        self.reach = graph.op("Mul", graph.op("Max", old, new), np.array(2))

    def resize(self, images: str) -> str:
        """Maps `[B, n, R, C]` to `[B, m, R, C]` float32."""
        graph = self.graph
        first, sources = self._sources()
        last = graph.op("Sub", self.old, np.array(1))
        parts = graph.op("Gather", images, graph.op("Min", sources, last), axis=1)
        rest = graph.op("Shape", images, start=2)
        rows = graph.op("Concat", graph.op("Shape", parts, end=3), np.array([-1]), axis=0)
        parts = graph.op("Reshape", parts, rows)
        parts = graph.op("Cast", parts, to=FLOAT)
        weights = self._weights(first, sources)
        if self.uint8:
            high, low = (
                graph.op("MatMul", self._float(half), parts)
                for half in (
                    graph.op("Div", weights, np.array(_HALF_PIXEL)),
                    graph.op("Mod", weights, np.array(_HALF_PIXEL)),
                )
            )
            carried = graph.op("Floor", graph.op("Div", low, float(_HALF_PIXEL)))
            total = graph.op("Add", graph.op("Add", high, carried), float(_HALF_PIXEL / 2))
            result = graph.op("Floor", graph.op("Div", total, float(_HALF_PIXEL)))
        else:
            result = graph.op("MatMul", weights, parts)
        shape = graph.op("Concat", graph.op("Shape", images, end=1), np.array([-1]), rest, axis=0)
        result = graph.op("Reshape", result, shape)
        end = graph.op("Unsqueeze", self.new, np.array([0]))
        return graph.op("Slice", result, np.array([0]), end, np.array([1]))

    def _sources(self) -> tuple[str, str]:
        """Returns the first result `[G, 1, 1]` of each block, and its source pixels `[G, L]`."""
        graph = self.graph
        first = graph.op("Range", np.array(0), self.new, np.array(_BLOCK))
        # Pixel x reaches result o where |(2 x + 1) m - (2 o + 1) n| < 2 max(n, m).
        centre = self._centre(first, self.old)
        least = graph.op("Sub", graph.op("Sub", centre, self.reach), self.new)
        start = graph.op("Div", graph.op("Max", least, np.array(0)), self._twice(self.new))
        span = graph.op("Add", graph.op("Mul", self.old, np.array(_BLOCK - 1)), self.reach)
        length = graph.op("Add", graph.op("Div", span, self.new), np.array(3))
        steps = graph.op("Range", np.array(0), length, np.array(1))
        sources = graph.op("Add", graph.op("Unsqueeze", start, np.array([1])), steps)
        return graph.op("Unsqueeze", first, np.array([1, 2])), sources

    def _weights(self, first: str, sources: str) -> str:
        """Returns the weights `[G, _BLOCK, L]`, in units of 2**-22 for uint8."""
        graph = self.graph
        results = graph.op("Add", first, np.arange(_BLOCK)[:, None])
        pixels = graph.op("Unsqueeze", sources, np.array([1]))
        apart = graph.op("Sub", self._centre(pixels, self.new), self._centre(results, self.old))
        near = graph.op("Sub", self.reach, graph.op("Abs", apart))
        near = graph.op("Max", near, np.array(0))
        near = graph.op("Where", graph.op("Less", pixels, self.old), near, np.array(0))
        total = graph.op("ReduceSum", near, np.array([2]), keepdims=1)
        total = graph.op("Max", total, np.array(1))
        if not self.uint8:
            return graph.op("Div", self._float(near), self._float(total))
        # Long division, within 32 bits: some runtimes have no wider integers.
        high, rest = self._divide(graph.op("Mul", near, np.array(_HALF_PIXEL)), total)
        low, rest = self._divide(graph.op("Mul", rest, np.array(_HALF_PIXEL)), total)
        up = graph.op("GreaterOrEqual", self._twice(rest), total)
        share = graph.op("Add", graph.op("Mul", high, np.array(_HALF_PIXEL)), low)
        return graph.op("Add", share, graph.op("Cast", up, to=INT64))

    def _divide(self, dividend: str, divisor: str) -> tuple[str, str]:
        graph = self.graph
        return graph.op("Div", dividend, divisor), graph.op("Mod", dividend, divisor)

    def _centre(self, places: str, other: str) -> str:
        """Returns the centres of pixels, in units of half a pixel over `other`."""
        middle = self.graph.op("Add", self._twice(places), np.array(1))
        return self.graph.op("Mul", middle, other)

    def _twice(self, number: str) -> str:
        return self.graph.op("Mul", number, np.array(2))

    def _float(self, number: str) -> str:
        return self.graph.op("Cast", number, to=FLOAT)


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
        images: name of images `[B, h, w, C]`, uint8 or float32.
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
    centres = method == "bilinear_half_pixel"
    axes = [_Axis(graph, size, new_size, axis, align_corners, centres) for axis in (1, 2)]
    if method == "nearest":
        for axis in axes:
            images = graph.op("Gather", images, axis.nearest(), axis=axis.axis)
        return images
    if method in ("bilinear", "bilinear_half_pixel"):
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
        graph.op("Cast", graph.op("Gather", images, places, axis=2), to=FLOAT)
        for places in (left, right)
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
        self,
        graph: Graph,
        size: Operand,
        new_size: Operand,
        axis: int,
        align_corners: bool,
        centres: bool,
    ) -> None:
        # Centres at half pixels and aligned corners exclude each other.
        self.graph, self.axis, self.align_corners = graph, axis, align_corners and not centres
        side = np.array(axis - 1)
        self.size, self.new_size = (graph.op("Gather", sides, side) for sides in (size, new_size))
        self.last = graph.op("Sub", self.size, _ONE)
        self.scale = self._scale()
        zero = np.array(0, np.float32)
        self.steps = graph.op("Range", zero, self.new_size, _ONE)
        if not centres:
            self.positions = graph.op("Mul", self.steps, self.scale)
            return
        scaled = graph.op("Mul", graph.op("Add", self.steps, _HALF), self.scale)
        self.positions = graph.op("Max", graph.op("Sub", scaled, _HALF), zero)

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
            graph.op("Unsqueeze", positions, np.array([1]))
            for positions in (self.positions, graph.op("Mul", next_steps, self.scale))
        )
        pixels = graph.op("Range", np.array(0, np.float32), self.size, _ONE)
        # The last pixel has no upper limit, because rounding can move positions beyond it.
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
        first, *rest = (np.array(factor, np.float32) for factor in factors)
        value = self.graph.op("Mul", at, first)
        for factor in rest[:-1]:
            value = self.graph.op("Mul", self.graph.op("Add", value, factor), at)
        return self.graph.op("Add", value, rest[-1])


class Resized(NamedTuple):
    """Resized images and their sizes. All images of a batch have the same size."""

    pixels: str
    """`[B, H, W, C]` float32 in 0..255."""
    true_size: Operand
    """`[2]` float32, height and width of the image proper inside `pixels`."""
    original_size: Operand
    """`[2]` float32, height and width before."""


def add_preprocessing(
    graph: Graph,
    resizer: schema.Resizer,
    images: str,
    size: tuple[int, int] | None,
    *,
    uint8: bool,
    channels: int = 3,
) -> Resized:
    """Writes resizing and padding to the network input into a graph.

    `size` is h and w if they are fixed; `uint8` is the type of the images `[B, h, w, C]`.

    Raises:
        UserError: images of this size do not fit the network input.
    """
    if size is not None and (reason := misfit(size, resizer)):
        problem = f"images of this size do not fit the canvas: {reason}"
        raise UserError(problem, where=Parameter("image_size"), fix=ENLARGE_CANVAS)
    old_size: Operand = np.array(size, np.float32)
    if size is None:
        old_size = graph.op("Cast", graph.op("Shape", images, start=1, end=3), to=FLOAT)
    inner = _resized_size(graph, old_size, resizer)
    pixels = images
    # A fixed size needs no resizing or padding that changes nothing; such nodes can take longer
    # than a small network.
    placed = size and resized_size(size, resizer)
    if resizer.method is not None and (placed is None or placed != size):
        pixels = add_resize(
            graph,
            images,
            old_size,
            inner,
            resizer.method,
            align_corners=resizer.align_corners,
            uint8=uint8,
        )
    pixels = graph.op("Cast", pixels, to=FLOAT)
    if not isinstance(resizer, schema.FixedShapeResizer) and placed != resizer.input_size:
        pixels = _pad(graph, pixels, inner, resizer, channels)
    # No runtime can derive the fixed shape from the nodes above.
    pixels = graph.op("Reshape", pixels, np.array([0, *resizer.input_size, channels]))
    return Resized(pixels, inner, old_size)


def _resized_size(graph: Graph, old_size: Operand, resizer: schema.Resizer) -> Operand:
    """Returns height and width `[2]` float32, by the arithmetic of `inputs.resize.resized_size`."""
    if isinstance(resizer, schema.FixedShapeResizer):
        return np.array(resizer.input_size, np.float32)
    if isinstance(resizer, schema.KeepAspectRatioResizer):
        short, long = (graph.op(kind, old_size, keepdims=1) for kind in ("ReduceMin", "ReduceMax"))
        targets = np.array([resizer.min_dimension, resizer.max_dimension], np.float32)
        ratios = graph.op("Div", targets, graph.op("Concat", short, long, axis=0))
        near, far = (graph.op("Gather", ratios, np.array([at])) for at in (0, 1))
        most = np.array(resizer.max_dimension, np.float32)
        passed = graph.op("Greater", _rounded(graph, long, near), most)
        return _rounded(graph, old_size, graph.op("Where", passed, far, near))
    if isinstance(resizer, schema.ScaleJitterResizer):
        ratios = graph.op("Div", np.array([resizer.height, resizer.width], np.float32), old_size)
        return _rounded(graph, old_size, graph.op("ReduceMin", ratios, keepdims=1))
    if isinstance(resizer, schema.ConditionalShapeResizer):
        kinds = ("ReduceMax", "Min") if resizer.condition == "greater" else ("ReduceMin", "Max")
        side = graph.op(kinds[0], old_size, keepdims=1)
        target = graph.op(kinds[1], side, np.array(resizer.threshold, np.float32))
        scaled = graph.op("Mul", old_size, graph.op("Div", target, side))
        return graph.op("Max", graph.op("Floor", scaled), _ONE)
    return old_size


def _rounded(graph: Graph, old_size: Operand, ratio: str) -> str:
    return graph.op("Max", graph.op("Round", graph.op("Mul", old_size, ratio)), _ONE)


def _pad(graph: Graph, pixels: str, inner: Operand, resizer: schema.Resizer, channels: int) -> str:
    """Pads images to the network input, at the bottom first."""
    assert not isinstance(resizer, schema.FixedShapeResizer)
    colour = np.array(per_channel(resizer.pad_value, channels), np.float32)
    size = graph.op("Cast", inner, to=INT64)
    missing = graph.op("Sub", np.array(resizer.input_size), size)
    for axis in (1, 2):
        shape = graph.op("Shape", pixels)
        part = graph.op("Gather", missing, np.array([axis - 1]))
        shape = graph.op("ScatterElements", shape, np.array([axis]), part)
        border = graph.op("Expand", colour, shape)
        pixels = graph.op("Concat", pixels, border, axis=axis)
    return pixels
