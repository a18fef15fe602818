"""The operations of AutoAugment on pixels and boxes: values, moves, gray patches, insides of boxes.

Images are uint8 `[h, w, 3]`. Values are truncated, not rounded, as in the original. Float32
copies of whole images fit no cache, and the C library returns arrays of that size to the system:
each costs page faults. A few rows at a time are several times faster.

Rotation, shears and shifts take the nearest neighbour, gray outside the image. Each pixel of the
result reads its position in the image. Positions are float32 in TensorFlow's order of arithmetic,
and halves are rounded away from zero: the same pixels are read as there.

Boxes are `[N, 4]`, normalised. Their corners are truncated to whole pixels, moved, and truncated
again; their bounding box is clipped to the image. No box is dropped: one that left the image
stays at its edge, a twentieth of the image thick.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import cv2
import numpy as np
from jaxtyping import Bool, Float32, Int, UInt8
from numpy.random import Generator

from stillbox.inputs.augment.common import random_integer
from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Boxes, Bytes, Floats, Sample

_VALUES_A_BAND = 1 << 15


def row_bands(rows: int, columns: int) -> Iterator[slice]:
    """Yields slices that cover all rows of an image, each of some thousand pixels."""
    height = max(_VALUES_A_BAND // (3 * columns), 1)
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))


Table = UInt8[np.ndarray, "256"]
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
    """Inverts all values from the threshold on; as in the original, 256 counts as 0."""
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


def blend(
    first: UInt8[np.ndarray, "*shape"], second: UInt8[np.ndarray, "*shape"], factor: float
) -> UInt8[np.ndarray, "*shape"]:
    """Returns `first + factor * (second - first)` in float32, clipped and cut to whole numbers."""
    start = first.astype(np.float32)
    mixed = second.astype(np.float32)
    mixed -= start
    mixed *= np.float32(factor)
    mixed += start
    return np.clip(mixed, 0, 255, out=mixed).astype(np.uint8)


def _contrast_about(image: Bytes, gray: float, factor: float) -> Bytes:
    return _look_up(image, blend(np.full_like(_VALUES, int(gray)), _VALUES, factor))


def _gray(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w"]:
    shares = image.astype(np.float32)
    shares *= _TO_SHARE
    gray = shares[..., 0] * _LUMA[0]
    gray += shares[..., 1] * _LUMA[1]
    gray += shares[..., 2] * _LUMA[2]
    gray *= _FROM_SHARE
    return gray.astype(np.uint8)


def _smoothed(image: UInt8[np.ndarray, "h w 3"]) -> Float32[np.ndarray, "h-2 w-2 3"]:
    """Returns the mean of 3 x 3 pixels, of which the middle one counts 5 times.

    The sum runs row by row in float32. The order matters: in areas of one colour, the rounding
    error decides whether a value is truncated to one less.
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


def _stretching(channel: UInt8[np.ndarray, "h w"]) -> Table:
    low, high = np.float32(channel.min()), np.float32(channel.max())
    if low == high:
        return _VALUES
    scale = np.float32(255) / (high - low)
    return np.clip(_VALUES.astype(np.float32) * scale - low * scale, 0, 255).astype(np.uint8)


def _equalizing(image: Bytes, channel: int) -> Table:
    counted = cv2.calcHist([image], [channel], None, [256], [0, 256])
    counts = counted.ravel().astype(np.int64)
    # Pixels of the greatest value present do not count.
    step = (counts.sum() - counts[counts > 0][-1]) // 255
    if step == 0:
        return _VALUES
    table = (np.cumsum(counts) + step // 2) // step
    return np.clip(np.append(0, table[:-1]), 0, 255).astype(np.uint8)


def _look_up(image: Bytes, table: Table | UInt8[np.ndarray, "256 3"]) -> Bytes:
    # Several times faster than numpy's indexing. OpenCV's table is an image of one column.
    return cast(Bytes, cv2.LUT(image, table[:, None] if table.ndim == 2 else table))


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
    return _pixels_at(
        image, lambda y, x: (sin * x + cos * y + y_start, cos * x - sin * y + x_start)
    )


def shear(image: Bytes, slope: float, axis: int) -> Bytes:
    """Moves each row left (axis 1) or column up (axis 0) by `slope` times its number."""
    tilt = np.float32(slope)
    if axis == 1:
        return _pixels_at(image, lambda y, x: (y, x + tilt * y))
    return _pixels_at(image, lambda y, x: (tilt * x + y, x))


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


def _pixels_at(image: Bytes, positions: Callable[[Floats, Floats], tuple[Floats, Floats]]) -> Bytes:
    """Returns the image sampled at other positions.

    `positions` takes rows `[n, 1]` and columns `[1, w]` to the rows and columns to read, which
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


def _nearest(
    positions: Float32[np.ndarray, "*shape"], length: int
) -> tuple[Int[np.ndarray, "*shape"], Bool[np.ndarray, "*shape"]]:
    """Returns indices, rounded half away from zero, and which of them are inside."""
    half = np.float32(0.5)
    return (positions + half).astype(np.intp), (positions > -half) & (positions < length - half)


_THIN = np.float32(0.05)


def rotate_boxes(boxes: Boxes, size: Size, degrees: float) -> Boxes:
    """Turns boxes counterclockwise about the image's centre; `size`: height, width in pixels."""
    angle = np.float32(np.deg2rad(degrees))
    cos, sin = np.cos(angle), np.sin(angle)
    y, x = _corners(_in_pixels(boxes - np.float32(0.5), size))
    turned = _around(np.trunc(cos * y - sin * x), np.trunc(sin * y + cos * x))
    return thick_enough(turned / _sides(size) + np.float32(0.5))


def shear_boxes(boxes: Boxes, size: Size, slope: float, axis: int) -> Boxes:
    """Moves corners by `slope` times their row (axis 1) or column (axis 0)."""
    y, x = _corners(_in_pixels(boxes, size))
    tilt = np.float32(slope)
    moved = (y, np.trunc(x - tilt * y)) if axis == 1 else (np.trunc(y - tilt * x), x)
    return thick_enough(_around(*moved) / _sides(size))


def translate_boxes(boxes: Boxes, size: Size, pixels: float, axis: int) -> Boxes:
    """Moves boxes up (axis 0) or left (axis 1) by a number of pixels."""
    moved = _in_pixels(boxes, size)
    moved[:, axis::2] -= np.float32(int(pixels))
    return thick_enough(moved / _sides(size))


def thick_enough(boxes: Boxes) -> Boxes:
    """Clips boxes to the image; those left without height or width get a least one."""
    clipped = np.clip(boxes, 0, 1)
    for axis in (0, 1):
        low, high = clipped[:, axis], clipped[:, axis + 2]
        flat = low == high
        low[flat] = np.minimum(low[flat], 1 - _THIN)
        high[flat] = np.maximum(high[flat], _THIN)
    return clipped


def _sides(size: Size) -> Float32[np.ndarray, "4"]:
    return np.tile(np.array(size, np.float32), 2)


def _in_pixels(boxes: Boxes, size: Size) -> Boxes:
    return np.trunc(boxes * _sides(size))


def _corners(boxes: Boxes) -> tuple[Float32[np.ndarray, "N 4"], Float32[np.ndarray, "N 4"]]:
    return boxes[:, [0, 0, 2, 2]], boxes[:, [1, 3, 1, 3]]


def _around(y: Float32[np.ndarray, "N 4"], x: Float32[np.ndarray, "N 4"]) -> Boxes:
    return np.stack([y.min(axis=1), x.min(axis=1), y.max(axis=1), x.max(axis=1)], axis=1)


Change = Callable[[Bytes, Generator], Bytes]


def cutout(image: Bytes, half: int, rng: Generator) -> Bytes:
    """Covers a square of `2 * half` pixels about a random pixel; it may stick out."""
    y, x = (random_integer(rng, 0, length) for length in image.shape[:2])
    return _covered(image, (y, x), (half, half))


def cutout_at_a_box(image: Bytes, boxes: Boxes, share: float, rng: Generator) -> Bytes:
    """Covers a patch of `share` of a random box's sides about a random pixel of the box, if any."""
    if not len(boxes):
        return image
    sides = box_pixels(boxes[random_integer(rng, 0, len(boxes))], image)
    rows, columns = (int(share * ((side.stop - side.start) / 2)) for side in sides)
    y, x = (random_integer(rng, side.start, side.stop) for side in sides)
    return _covered(image, (y, x), (rows, columns))


def change_inside_boxes(
    sample: Sample, change: Change, probability: float, rng: Generator
) -> Sample:
    """Changes the pixels of each box of a uint8 image with a probability, in random order.

    `change` takes the pixels of a box to others of the same shape. If boxes overlap, a later one
    gets the changed pixels of the earlier. Boxes do not move.
    """
    count = len(sample.boxes)
    order, chosen = np.argsort(rng.random(count)), rng.random(count) + probability >= 1
    image = sample.image.astype(np.uint8)
    for index in order[chosen[order]]:
        rows, columns = box_pixels(sample.boxes[index], image)
        content = np.ascontiguousarray(image[rows, columns])
        if content.size:
            image[rows, columns] = change(content, rng)
    return replace(sample, image=image)


def box_pixels(box: Float32[np.ndarray, "4"], image: Bytes) -> tuple[slice, slice]:
    """Returns rows and columns of a box, last included, perhaps a pixel beyond the edge."""
    height, width = (np.float32(length) for length in image.shape[:2])
    ymin, xmin, ymax, xmax = box
    return (
        slice(int(height * ymin), int(height * ymax) + 1),
        slice(int(width * xmin), int(width * xmax) + 1),
    )


def _covered(image: Bytes, center: tuple[int, int], halves: tuple[int, int]) -> Bytes:
    (y, x), (rows, columns) = center, halves
    result = image.copy()
    result[max(y - rows, 0) : y + rows, max(x - columns, 0) : x + columns] = FILL
    return result
