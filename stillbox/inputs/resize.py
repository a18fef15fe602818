"""From an image of any size to the network input, padded where the aspect ratio is kept."""

import numpy as np

from stillbox.errors import UserError
from stillbox.experiment.schema import (
    ConditionalShapeResizer,
    FixedShapeResizer,
    KeepAspectRatioResizer,
    Resizer,
)
from stillbox.inputs.interpolation import METHODS, Floats
from stillbox.inputs.sample import Pixels

Size = tuple[int, int]
"""Height and width in pixels."""

ENLARGE_CANVAS = (
    "enlarge model.resizer.canvas, or take a resizer that shrinks (fixed_shape, keep_aspect_ratio)"
)
"""What mends an image that does not fit."""


def resized_size(size: Size, resizer: Resizer) -> Size:
    """Returns height and width that an image of `size` has inside the network input.

    With the aspect ratio kept, the short side becomes `min_dimension` unless that makes the long
    one greater than `max_dimension` (fact sheet 3.1). float32 and rounding half to even, as TF1.
    """
    if isinstance(resizer, FixedShapeResizer):
        return resizer.height, resizer.width
    if isinstance(resizer, KeepAspectRatioResizer):
        height, width = _scaled(size, resizer.min_dimension, min(size))
        if max(height, width) > resizer.max_dimension:
            height, width = _scaled(size, resizer.max_dimension, max(size))
        return height, width
    if isinstance(resizer, ConditionalShapeResizer):
        return _conditional_size(size, resizer)
    return size


def _scaled(size: Size, target: int, side: int) -> Size:
    scale = np.float32(target) / np.float32(side)
    height, width = (max(int(np.rint(np.float32(length) * scale)), 1) for length in size)
    return height, width


def _conditional_size(size: Size, resizer: ConditionalShapeResizer) -> Size:
    if resizer.condition == "greater":
        side = max(size)
        target = min(side, resizer.threshold)
    else:
        side = min(size)
        target = max(side, resizer.threshold)
    # The original multiplies by a float32 ratio and cuts, which can lose a pixel: so must we.
    ratio = np.float32(target) / np.float32(side)
    height, width = (max(int(np.float32(length) * ratio), 1) for length in size)
    return height, width


def misfit(size: Size, resizer: Resizer) -> str | None:
    """Returns in words why an image of `size` does not fit the network input; None if it does.

    It always fits where the resizer chooses the size; with a `canvas`, somebody else did.
    """
    height, width = resized_size(size, resizer)
    rows, columns = resizer.input_size
    if height <= rows and width <= columns:
        return None
    was = "" if (height, width) == size else f", {height}x{width} after resizing"
    return f"{size[0]}x{size[1]}{was} (height x width), canvas {rows}x{columns}"


def resize_into(image: Pixels, resizer: Resizer, out: Floats) -> Size:
    """Resizes `image` into the upper left of `out` and pads the rest.

    Args:
        image: `[h, w, 3]`, 0..255; one that fits (`misfit`).
        resizer: of the model.
        out: `[H, W, 3]`, the resizer's `input_size`; written to.

    Returns:
        Height and width of the image proper inside `out`.
    """
    size = (image.shape[0], image.shape[1])
    height, width = resized_size(size, resizer)
    if (height, width) == size:
        # Every method would give the same pixels: an augmentation has already made the size.
        out[:height, :width] = image
    elif isinstance(resizer, ConditionalShapeResizer):
        METHODS[resizer.method](image, out[:height, :width], align_corners=True)
    elif isinstance(resizer, FixedShapeResizer | KeepAspectRatioResizer):
        METHODS[resizer.method](image, out[:height, :width])
    if not isinstance(resizer, FixedShapeResizer):
        out[height:] = resizer.pad_value
        out[:height, width:] = resizer.pad_value
    return height, width


def resize_image(
    image: Pixels, resizer: Resizer, *, where: str | None = None
) -> tuple[Floats, Size]:
    """Resizes an image to the network input.

    Args:
        image: `[h, w, 3]`, 0..255.
        resizer: of the model.
        where: what an error calls the image.

    Returns:
        The padded image `[H, W, 3]`, 0..255, and height and width of the image proper inside it.

    Raises:
        UserError: the image is larger than the canvas of a resizer that does not shrink.
    """
    if reason := misfit((image.shape[0], image.shape[1]), resizer):
        raise UserError(
            f"the image does not fit the canvas: {reason}", where=where, fix=ENLARGE_CANVAS
        )
    out = np.empty((*resizer.input_size, 3), np.float32)
    return out, resize_into(image, resizer, out)
