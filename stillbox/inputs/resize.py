"""From an image of any size to the network input, padded where the aspect ratio is kept."""

import numpy as np
from numpy.typing import NDArray

from stillbox.experiment.schema import FixedShapeResizer, Resizer
from stillbox.inputs.interpolation import METHODS

Size = tuple[int, int]
"""Height and width in pixels."""


def canvas_size(resizer: Resizer) -> Size:
    """Returns height and width of the network input."""
    if isinstance(resizer, FixedShapeResizer):
        return resizer.height, resizer.width
    return resizer.max_dimension, resizer.max_dimension


def resized_size(size: Size, resizer: Resizer) -> Size:
    """Returns height and width that an image of `size` has inside the network input.

    With the aspect ratio kept, the short side becomes `min_dimension` unless that makes the long
    one greater than `max_dimension` (fact sheet 3.1). float32 and rounding half to even, as TF1.
    """
    if isinstance(resizer, FixedShapeResizer):
        return resizer.height, resizer.width
    height, width = _scaled(size, resizer.min_dimension, min(size))
    if max(height, width) > resizer.max_dimension:
        height, width = _scaled(size, resizer.max_dimension, max(size))
    return height, width


def _scaled(size: Size, target: int, side: int) -> Size:
    scale = np.float32(target) / np.float32(side)
    height, width = (max(int(np.rint(np.float32(length) * scale)), 1) for length in size)
    return height, width


def resize_into(
    image: NDArray[np.uint8] | NDArray[np.float32], resizer: Resizer, out: NDArray[np.float32]
) -> Size:
    """Resizes `image` into the upper left of `out` and pads the rest.

    Args:
        image: `[h, w, 3]`, 0..255.
        resizer: of the model.
        out: `[H, W, 3]`, the size that `canvas_size` names; written to.

    Returns:
        Height and width of the image proper inside `out`.
    """
    height, width = resized_size((image.shape[0], image.shape[1]), resizer)
    METHODS[resizer.method](image, out[:height, :width])
    if not isinstance(resizer, FixedShapeResizer):
        out[height:] = resizer.pad_value
        out[:height, width:] = resizer.pad_value
    return height, width


def resize_image(
    image: NDArray[np.uint8] | NDArray[np.float32], resizer: Resizer
) -> tuple[NDArray[np.float32], Size]:
    """Resizes an image to the network input.

    Args:
        image: `[h, w, 3]`, 0..255.
        resizer: of the model.

    Returns:
        The padded image `[H, W, 3]`, 0..255, and height and width of the image proper inside it.
    """
    out = np.empty((*canvas_size(resizer), 3), np.float32)
    return out, resize_into(image, resizer, out)
