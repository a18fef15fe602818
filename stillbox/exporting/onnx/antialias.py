"""Pillow's triangle filter in ONNX operators: `stillbox.inputs.antialias`.

The result is the product of images and a band matrix. It is computed in blocks of consecutive
results, each with the few source pixels in its band.
"""

import numpy as np

from stillbox.exporting.onnx.graph import FLOAT, INT64, Graph, Operand

_BLOCK = 30
"""Results in a block."""
_HALF = 2**11
"""Pillow's weights have 22 bits. Each half of them gives sums that float32 holds exactly."""


def add_antialias(
    graph: Graph, images: str, size: Operand, new_size: Operand, *, uint8: bool
) -> str:
    """Writes the filter into a graph: columns first, as Pillow does, then rows.

    Args:
        graph: nodes are appended to it.
        images: name of images `[B, h, w, 3]`.
        size: `[2]` float32, h and w.
        new_size: `[2]` float32, height and width of the result.
        uint8: round to whole numbers after either axis, as Pillow does with uint8.

    Returns:
        Name of the result, float32.
    """
    for axis in (1, 0):
        old, new = (
            graph.op("Cast", graph.op("Gather", one, np.array(axis)), to=INT64)
            for one in (size, new_size)
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
        """Maps `[B, n, R, 3]` to `[B, m, R, 3]` float32."""
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
                    graph.op("Div", weights, np.array(_HALF)),
                    graph.op("Mod", weights, np.array(_HALF)),
                )
            )
            carried = graph.op("Floor", graph.op("Div", low, float(_HALF)))
            total = graph.op("Add", graph.op("Add", high, carried), float(_HALF / 2))
            result = graph.op("Floor", graph.op("Div", total, float(_HALF)))
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
        high, rest = self._divide(graph.op("Mul", near, np.array(_HALF)), total)
        low, rest = self._divide(graph.op("Mul", rest, np.array(_HALF)), total)
        up = graph.op("GreaterOrEqual", self._twice(rest), total)
        share = graph.op("Add", graph.op("Mul", high, np.array(_HALF)), low)
        return graph.op("Add", share, graph.op("Cast", up, to=INT64))

    def _divide(self, dividend: str, divisor: str) -> tuple[str, str]:
        return tuple(self.graph.op(kind, dividend, divisor) for kind in ("Div", "Mod"))  # type: ignore[return-value]

    def _centre(self, places: str, other: str) -> str:
        """Returns the centres of pixels, in units of half a pixel over `other`."""
        middle = self.graph.op("Add", self._twice(places), np.array(1))
        return self.graph.op("Mul", middle, other)

    def _twice(self, number: str) -> str:
        return self.graph.op("Mul", number, np.array(2))

    def _float(self, number: str) -> str:
        return self.graph.op("Cast", number, to=FLOAT)
