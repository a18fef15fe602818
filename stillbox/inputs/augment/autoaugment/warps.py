"""Rotation, shears and shifts of images: nearest neighbour, gray outside the image.

Each pixel of the result reads its position in the image. Positions are float32 in TensorFlow's
order of arithmetic, and halves are rounded away from zero, so that the same pixels are read.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stillbox.inputs.augment.autoaugment.bands import row_bands
from stillbox.inputs.sample import Bytes, Floats

FILL = 128
"""Value of all channels outside the image."""


def rotate(image: Bytes, degrees: float) -> Bytes:
    """Turns the image about its centre, counterclockwise for positive degrees."""
    height, width = image.shape[:2]
    angle = np.float32(np.deg2rad(degrees))
    cos, sin = np.cos(angle), np.sin(angle)
    last_y, last_x = np.float32(height - 1), np.float32(width - 1)
    x_start = (last_x - (cos * last_x - sin * last_y)) / np.float32(2)
    y_start = (last_y - (sin * last_x + cos * last_y)) / np.float32(2)
    return _sampled(image, lambda y, x: (sin * x + cos * y + y_start, cos * x - sin * y + x_start))


def shear(image: Bytes, slope: float, axis: int) -> Bytes:
    """Moves each row left (axis 1) or column up (axis 0) by `slope` times its number."""
    tilt = np.float32(slope)
    if axis == 1:
        return _sampled(image, lambda y, x: (y, x + tilt * y))
    return _sampled(image, lambda y, x: (tilt * x + y, x))


def translate(image: Bytes, pixels: float, axis: int) -> Bytes:
    """Moves the content up (axis 0) or left (axis 1) by truncated `pixels`."""
    length = image.shape[axis]
    shift = max(-length, min(int(pixels), length))
    result = np.full_like(image, FILL)
    source = slice(max(shift, 0), length + min(shift, 0))
    target = slice(source.start - shift, source.stop - shift)
    before = (slice(None),) * axis
    result[(*before, target)] = image[(*before, source)]
    return result


def _sampled(image: Bytes, positions: Callable[[Floats, Floats], tuple[Floats, Floats]]) -> Bytes:
    """Returns the image sampled at other positions.

    Args:
        image: `[h, w, 3]`.
        positions: from rows `[n, 1]` and columns `[1, w]` to the rows and columns to read, which
            broadcast to `[n, w]`.
    """
    height, width = image.shape[:2]
    rows, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    # One more pixel, read by positions outside the image.
    pixels = np.append(image.reshape(-1, 3), np.full((1, 3), FILL, np.uint8), axis=0)
    result = np.empty_like(image)
    for band in row_bands(height, width):
        (y, y_inside), (x, x_inside) = (
            _nearest(position, length)
            for position, length in zip(
                positions(rows[band, None], columns[None]), (height, width), strict=True
            )
        )
        index = y * width + x
        index[~(y_inside & x_inside)] = height * width
        pixels.take(index, axis=0, mode="clip", out=result[band])
    return result


def _nearest(positions: Floats, length: int) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Returns indices, rounded half away from zero, and which of them are inside."""
    half = np.float32(0.5)
    return (positions + half).astype(np.intp), (positions > -half) & (positions < length - half)
