"""From images of any size to the network input as an ONNX graph: `stillbox.inputs.resize`."""

from typing import NamedTuple

import numpy as np

from stillbox.errors import UserError
from stillbox.experiment.schema import (
    ConditionalShapeResizer,
    FixedShapeResizer,
    KeepAspectRatioResizer,
    Resizer,
    ScaleJitterResizer,
)
from stillbox.exporting.onnx.graph import FLOAT, INT64, Graph, Operand
from stillbox.exporting.onnx.sampling import add_resize
from stillbox.inputs.resize import ENLARGE_CANVAS, misfit, resized_size

_ONE = np.array(1, np.float32)


class Resized(NamedTuple):
    """Resized images and their sizes. All images of a batch have the same size."""

    pixels: str
    """`[B, H, W, 3]` float32 in 0..255."""
    true_size: Operand
    """`[2]` float32, height and width of the image proper inside `pixels`."""
    original_size: Operand
    """`[2]` float32, height and width before."""


def add_preprocessing(
    graph: Graph, resizer: Resizer, images: str, size: tuple[int, int] | None, *, uint8: bool
) -> Resized:
    """Writes resizing and padding to the network input into a graph.

    Args:
        graph: nodes are appended to it.
        resizer: of the model.
        images: name of the images `[B, h, w, 3]`, uint8 or float32.
        size: h and w if they are fixed.
        uint8: the type of the images.

    Raises:
        UserError: images of this size do not fit the network input.
    """
    if size is not None and (reason := misfit(size, resizer)):
        raise UserError(
            f"images of this size do not fit the canvas: {reason}",
            where="--input-image-size",
            fix=ENLARGE_CANVAS,
        )
    own: Operand = np.array(size, np.float32)
    if size is None:
        own = graph.op("Cast", graph.op("Shape", images, start=1, end=3), to=FLOAT)
    inner = _resized_size(graph, own, resizer)
    pixels = images
    # What a known size makes superfluous is left out; it can take longer than a small network.
    placed = size and resized_size(size, resizer)
    if resizer.method is not None and (placed is None or placed != size):
        pixels = add_resize(
            graph,
            images,
            own,
            inner,
            resizer.method,
            align_corners=resizer.align_corners,
            uint8=uint8,
        )
    pixels = graph.op("Cast", pixels, to=FLOAT)
    if not isinstance(resizer, FixedShapeResizer) and placed != resizer.input_size:
        pixels = _pad(graph, pixels, inner, resizer)
    # No runtime can derive the fixed shape from the nodes above.
    pixels = graph.op("Reshape", pixels, np.array([0, *resizer.input_size, 3]))
    return Resized(pixels, inner, own)


def _resized_size(graph: Graph, own: Operand, resizer: Resizer) -> Operand:
    """Returns height and width `[2]` float32, by the arithmetic of `inputs.resize.resized_size`."""
    if isinstance(resizer, FixedShapeResizer):
        return np.array(resizer.input_size, np.float32)
    if isinstance(resizer, KeepAspectRatioResizer):
        short, long = (graph.op(kind, own, keepdims=1) for kind in ("ReduceMin", "ReduceMax"))
        targets = np.array([resizer.min_dimension, resizer.max_dimension], np.float32)
        ratios = graph.op("Div", targets, graph.op("Concat", short, long, axis=0))
        near, far = (graph.op("Gather", ratios, np.array([at])) for at in (0, 1))
        most = np.array(resizer.max_dimension, np.float32)
        passed = graph.op("Greater", _rounded(graph, long, near), most)
        return _rounded(graph, own, graph.op("Where", passed, far, near))
    if isinstance(resizer, ScaleJitterResizer):
        ratios = graph.op("Div", np.array([resizer.height, resizer.width], np.float32), own)
        return _rounded(graph, own, graph.op("ReduceMin", ratios, keepdims=1))
    if isinstance(resizer, ConditionalShapeResizer):
        kinds = ("ReduceMax", "Min") if resizer.condition == "greater" else ("ReduceMin", "Max")
        side = graph.op(kinds[0], own, keepdims=1)
        target = graph.op(kinds[1], side, np.array(resizer.threshold, np.float32))
        scaled = graph.op("Mul", own, graph.op("Div", target, side))
        return graph.op("Max", graph.op("Floor", scaled), _ONE)
    return own


def _rounded(graph: Graph, own: Operand, ratio: str) -> str:
    return graph.op("Max", graph.op("Round", graph.op("Mul", own, ratio)), _ONE)


def _pad(graph: Graph, pixels: str, inner: Operand, resizer: Resizer) -> str:
    """Pads images to the network input, at the bottom first."""
    assert not isinstance(resizer, FixedShapeResizer)
    colour = np.array(resizer.pad_value, np.float32)
    size = graph.op("Cast", inner, to=INT64)
    missing = graph.op("Sub", np.array(resizer.input_size), size)
    for axis in (1, 2):
        shape = graph.op("Shape", pixels)
        part = graph.op("Gather", missing, np.array([axis - 1]))
        shape = graph.op("ScatterElements", shape, np.array([axis]), part)
        border = graph.op("Expand", colour, shape)
        pixels = graph.op("Concat", pixels, border, axis=axis)
    return pixels
