"""Operations that change values only.

Images are uint8 `[h, w, 3]`. Values are truncated, not rounded, as in the original.
"""

from typing import cast

import cv2
import numpy as np

from stillbox.inputs.augment.autoaugment.bands import row_bands
from stillbox.inputs.sample import Bytes, Floats

_VALUES = np.arange(256, dtype=np.uint8)
# TensorFlow's luma weights, and its factors from bytes to shares and back.
_LUMA = np.array([0.2989, 0.587, 0.114], np.float32)
_TO_SHARE, _FROM_SHARE = np.float32(1 / 255), np.float32(255.5)


def auto_contrast(image: Bytes) -> Bytes:
    """Stretches each channel so that its least value is 0 and its greatest 255."""
    tables = np.stack([_stretching(image[..., channel]) for channel in range(3)], axis=-1)
    return _look_up(image, tables)


def equalize(image: Bytes) -> Bytes:
    """Gives each channel a nearly even histogram, as PIL does."""
    tables = np.stack([_equalizing(image, channel) for channel in range(3)], axis=-1)
    return _look_up(image, tables)


def posterize(image: Bytes, bits: int) -> Bytes:
    """Keeps the upper `bits` of each value; 0 keeps one: TensorFlow shifts bytes by 7 at most."""
    shift = np.uint8(min(8 - bits, 7))
    return _look_up(image, (_VALUES >> shift) << shift)


def solarize(image: Bytes, threshold: int) -> Bytes:
    """Inverts all values that are not below the threshold.

    256 does not fit into a byte and counts as 0 in the original, which inverts everything.
    """
    table = _VALUES.copy()
    table[threshold % 256 :] ^= 255
    return _look_up(image, table)


def solarize_add(image: Bytes, addition: int) -> Bytes:
    """Adds to all values below 128."""
    brighter = np.minimum(_VALUES.astype(np.int64) + addition, 255)
    return _look_up(image, np.where(_VALUES < 128, brighter, _VALUES).astype(np.uint8))


def color(image: Bytes, factor: float) -> Bytes:
    """Interpolates, or extrapolates, from the gray image (0) to the image (1)."""
    result = np.empty_like(image)
    for rows in row_bands(*image.shape[:2]):
        band = image[rows]
        gray = cast(Bytes, cv2.cvtColor(_gray(band), cv2.COLOR_GRAY2RGB))
        result[rows] = blend(gray, band, factor)
    return result


def contrast(image: Bytes, factor: float) -> Bytes:
    """Blends the number of pixels divided by 256, at most 255, with the image.

    The mean gray is intended, but the original takes the mean of a histogram's counts.
    """
    height, width = image.shape[:2]
    return _contrast_about(image, min(height * width / 256, 255), factor)


def contrast_about_mean(image: Bytes, factor: float) -> Bytes:
    """Blends the mean of the gray image, rounded as PIL does, with the image."""
    height, width = image.shape[:2]
    total = sum(int(_gray(image[rows]).sum()) for rows in row_bands(height, width))
    return _contrast_about(image, total / (height * width) + 0.5, factor)


def brightness(image: Bytes, factor: float) -> Bytes:
    """Multiplies all values."""
    return _look_up(image, blend(np.zeros_like(_VALUES), _VALUES, factor))


def sharpness(image: Bytes, factor: float) -> Bytes:
    """Interpolates, or extrapolates, from a smoothed image (0) to the image (1); the rim stays."""
    height, width = image.shape[:2]
    result = image.copy()
    for rows in row_bands(height - 2, width):
        around = image[rows.start : rows.stop + 2]
        smooth = _smoothed(around).astype(np.uint8)
        result[1:-1, 1:-1][rows] = blend(smooth, around[1:-1, 1:-1], factor)
    return result


def blend(first: Bytes, second: Bytes, factor: float) -> Bytes:
    """Returns `first + factor * (second - first)` in float32, clipped and cut to whole numbers."""
    start = first.astype(np.float32)
    mixed = second.astype(np.float32)
    mixed -= start
    mixed *= np.float32(factor)
    mixed += start
    return np.clip(mixed, 0, 255, out=mixed).astype(np.uint8)


def _contrast_about(image: Bytes, gray: float, factor: float) -> Bytes:
    return _look_up(image, blend(np.full_like(_VALUES, int(gray)), _VALUES, factor))


def _gray(image: Bytes) -> Bytes:
    """Returns `[h, w]` as TensorFlow does, in its order of arithmetic."""
    shares = image.astype(np.float32)
    shares *= _TO_SHARE
    gray = shares[..., 0] * _LUMA[0]
    gray += shares[..., 1] * _LUMA[1]
    gray += shares[..., 2] * _LUMA[2]
    gray *= _FROM_SHARE
    return gray.astype(np.uint8)


def _smoothed(image: Bytes) -> Floats:
    """Returns `[h - 2, w - 2, 3]`: the mean of 3 x 3 pixels in which the middle counts 5 times.

    The sum runs row by row in float32. In areas of one colour its error decides whether a value is
    truncated to one less, so that the order matters.
    """
    (rows, columns), weight = image.shape[:2], np.float32(1) / np.float32(13)
    around = image * weight
    middle = image[1:-1, 1:-1] * (np.float32(5) / np.float32(13))
    total = np.zeros_like(middle)
    for y in range(3):
        for x in range(3):
            part = around[y : y + rows - 2, x : x + columns - 2]
            total += middle if (y, x) == (1, 1) else part
    return total


def _stretching(channel: Bytes) -> Bytes:
    low, high = np.float32(channel.min()), np.float32(channel.max())
    if low == high:
        return _VALUES
    scale = np.float32(255) / (high - low)
    return np.clip(_VALUES.astype(np.float32) * scale - low * scale, 0, 255).astype(np.uint8)


def _equalizing(image: Bytes, channel: int) -> Bytes:
    counted = cv2.calcHist([image], [channel], None, [256], [0, 256])
    counts = counted.ravel().astype(np.int64)
    # Pixels of the greatest value present do not count.
    step = (counts.sum() - counts[counts > 0][-1]) // 255
    if step == 0:
        return _VALUES
    table = (np.cumsum(counts) + step // 2) // step
    return np.clip(np.append(0, table[:-1]), 0, 255).astype(np.uint8)


def _look_up(image: Bytes, table: Bytes) -> Bytes:
    """Maps all values by a table `[256]`, or by one for each channel, `[256, 3]`."""
    # Several times faster than numpy's indexing. OpenCV's table is an image of one column.
    return cast(Bytes, cv2.LUT(image, table[:, None] if table.ndim == 2 else table))
