"""Pillow's triangle filter in ONNX operators: `stillbox.inputs.antialias`.

A result is a product of images and weights that are zero but for a narrow band. Some results that
follow each other look at few pixels, so that blocks of the band are multiplied, each with its
part of the image.
"""

import numpy as np

from stillbox.exporting.onnx.graph import FLOAT, INT64, Graph, Operand

_BLOCK = 30
"""Results of a block."""
_HALF = 2**11
"""Pillow's weights have 22 bits. Each half of them gives sums that float32 holds exactly."""


def add_antialias(
    graph: Graph, images: str, size: Operand, new_size: Operand, *, whole: bool
) -> str:
    """Writes the filter into a graph: columns first, as Pillow does, then rows.

    Args:
        graph: where to.
        images: name of images `[B, h, w, 3]`.
        size: `[2]` float32, h and w.
        new_size: `[2]` float32, height and width of the result.
        whole: round to whole numbers after either, as Pillow does with uint8.

    Returns:
        Name of the result, float32.
    """
    for axis in (1, 0):
        old, new = (
            graph.op("Cast", graph.op("Gather", one, np.array(axis)), to=INT64)
            for one in (size, new_size)
        )
        turned = graph.op("Transpose", images, perm=[0, 2, 1, 3]) if axis else images
        turned = _Band(graph, old, new, whole).resize(turned)
        images = graph.op("Transpose", turned, perm=[0, 2, 1, 3]) if axis else turned
    return images


class _Band:
    """One axis that is being resized.

    Args:
        graph: where to write.
        old: name of n, the pixels of the image, an int64 scalar.
        new: name of m, those of the result.
        whole: see `add_antialias`.
    """

    def __init__(self, graph: Graph, old: str, new: str, whole: bool) -> None:
        self.graph, self.old, self.new, self.whole = graph, old, new, whole
        self.reach = graph.op("Mul", graph.op("Max", old, new), np.array(2))

    def resize(self, images: str) -> str:
        """Maps `[B, n, R, 3]` to `[B, m, R, 3]` float32."""
        graph = self.graph
        first, sources = self._sources()
        last = graph.op("Sub", self.old, np.array(1))
        parts = graph.op("Gather", images, graph.op("Min", sources, last), axis=1)
        rest = graph.op("Shape", images, start=2)
        parts = graph.op("Reshape", parts, self._shape(parts, end=3, last=np.array([-1])))
        parts = graph.op("Cast", parts, to=FLOAT)
        weights = self._weights(first, sources)
        if self.whole:
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
        """Returns the first result `[G, 1, 1]` of each block, and the pixels `[G, L]` it sees."""
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
        """Returns the weights `[G, _BLOCK, L]`, of 22 bits where results are whole numbers."""
        graph = self.graph
        results = graph.op("Add", first, np.arange(_BLOCK)[:, None])
        pixels = graph.op("Unsqueeze", sources, np.array([1]))
        apart = graph.op("Sub", self._centre(pixels, self.new), self._centre(results, self.old))
        near = graph.op("Sub", self.reach, graph.op("Abs", apart))
        near = graph.op("Max", near, np.array(0))
        near = graph.op("Where", graph.op("Less", pixels, self.old), near, np.array(0))
        total = graph.op("ReduceSum", near, np.array([2]), keepdims=1)
        total = graph.op("Max", total, np.array(1))
        if not self.whole:
            return graph.op("Div", self._float(near), self._float(total))
        # Long division, which no 32 bits overflow: some runtimes have no more.
        high, rest = self._divide(graph.op("Mul", near, np.array(_HALF)), total)
        low, rest = self._divide(graph.op("Mul", rest, np.array(_HALF)), total)
        up = graph.op("GreaterOrEqual", self._twice(rest), total)
        share = graph.op("Add", graph.op("Mul", high, np.array(_HALF)), low)
        return graph.op("Add", share, graph.op("Cast", up, to=INT64))

    def _divide(self, dividend: str, divisor: str) -> tuple[str, str]:
        return tuple(self.graph.op(kind, dividend, divisor) for kind in ("Div", "Mod"))  # type: ignore[return-value]

    def _centre(self, places: str, other: str) -> str:
        """Returns the middle of pixels, in units of half a pixel over `other`."""
        middle = self.graph.op("Add", self._twice(places), np.array(1))
        return self.graph.op("Mul", middle, other)

    def _twice(self, number: str) -> str:
        return self.graph.op("Mul", number, np.array(2))

    def _float(self, number: str) -> str:
        return self.graph.op("Cast", number, to=FLOAT)

    def _shape(self, images: str, *, end: int, last: np.ndarray) -> str:
        return self.graph.op("Concat", self.graph.op("Shape", images, end=end), last, axis=0)
