"""Rotation, shears and shifts of boxes `[N, 4]`, normalised.

Corners are truncated to whole pixels, moved, and truncated again; their bounding box is clipped to
the image. No box is dropped: one that left the image stays at its edge, a twentieth of the image
thick.
"""

import numpy as np

from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Floats

_THIN = np.float32(0.05)


def rotate_boxes(boxes: Floats, size: Size, degrees: float) -> Floats:
    """Turns boxes counterclockwise about the image's centre; `size`: height, width in pixels."""
    angle = np.float32(np.deg2rad(degrees))
    cos, sin = np.cos(angle), np.sin(angle)
    y, x = _corners(_in_pixels(boxes - np.float32(0.5), size))
    turned = _around(np.trunc(cos * y - sin * x), np.trunc(sin * y + cos * x))
    return thick_enough(turned / _sides(size) + np.float32(0.5))


def shear_boxes(boxes: Floats, size: Size, slope: float, axis: int) -> Floats:
    """Moves corners by `slope` times their row (axis 1) or column (axis 0)."""
    y, x = _corners(_in_pixels(boxes, size))
    tilt = np.float32(slope)
    moved = (y, np.trunc(x - tilt * y)) if axis == 1 else (np.trunc(y - tilt * x), x)
    return thick_enough(_around(*moved) / _sides(size))


def translate_boxes(boxes: Floats, size: Size, pixels: float, axis: int) -> Floats:
    """Moves boxes up (axis 0) or left (axis 1) by a number of pixels."""
    moved = _in_pixels(boxes, size)
    moved[:, axis::2] -= np.float32(int(pixels))
    return thick_enough(moved / _sides(size))


def thick_enough(boxes: Floats) -> Floats:
    """Clips boxes to the image; those left without height or width get a least one."""
    clipped = np.clip(boxes, 0, 1)
    for axis in (0, 1):
        low, high = clipped[:, axis], clipped[:, axis + 2]
        flat = low == high
        low[flat] = np.minimum(low[flat], 1 - _THIN)
        high[flat] = np.maximum(high[flat], _THIN)
    return clipped


def _sides(size: Size) -> Floats:
    return np.tile(np.array(size, np.float32), 2)


def _in_pixels(boxes: Floats, size: Size) -> Floats:
    return np.trunc(boxes * _sides(size))


def _corners(boxes: Floats) -> tuple[Floats, Floats]:
    """Returns rows and columns of the four corners, `[N, 4]` each."""
    return boxes[:, [0, 0, 2, 2]], boxes[:, [1, 3, 1, 3]]


def _around(y: Floats, x: Floats) -> Floats:
    """Returns the boxes `[N, 4]` that hold four points each."""
    return np.stack([y.min(axis=1), x.min(axis=1), y.max(axis=1), x.max(axis=1)], axis=1)
