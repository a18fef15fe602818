"""`tf.image.resize_images` of TF1, bit for bit if possible, and Pillow's antialiased resizing.

Output position o reads source position `o * in / out`: the grids share their first corner, not
their centres. With `align_corners` it is `o * (in - 1) / (out - 1)`: first and last pixels
coincide. All positions are float32, as in the original, because the fraction after `floor`
becomes a weight. All methods take an image `[h, w, C]` and write to `out` `[H, W, C]`.

`bilinear_antialias` has a triangle filter that widens with the scale. TF1's bilinear reads four
pixels at any scale; models trained on antialiased images (Pillow, or `antialias` of TF2 and JAX)
lose AP with it.

Each thread reuses its buffers. The C library returns large arrays to the system when they are
freed, and each new one costs page faults. In a resize these took longer than the arithmetic.
"""

import math
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

import cv2
import numpy as np
from jaxtyping import Float32, Float64, Int, Num
from numpy.typing import NDArray
from PIL import Image

from stillbox.inputs.decode import FloatPixels
from stillbox.inputs.sample import Floats, Pixels

DType = TypeVar("DType", bound=np.generic)


class Scratch(threading.local):
    """Arrays by name, valid until the same thread requests the same name again."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: type[DType]) -> NDArray[DType]:
        """Returns an uninitialised array, the buffer of this name."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.empty(size, np.uint8)
        return buffer[:size].view(dtype).reshape(shape)


def bilinear_antialias(image: Pixels, out: FloatPixels, *, align_corners: bool = False) -> None:
    """Resizes as Pillow does; uint8 is rounded after each axis.

    Pillow 13 begins with the axis that it estimates to be cheaper, which changes the rounding. Two
    calls fix the order of earlier releases, columns first. `align_corners` has no effect: centres
    are at half pixels.
    """
    size = (out.shape[1], out.shape[0])
    if image.dtype == np.uint8 and image.shape[2] == 3:
        out[:] = _resized(Image.fromarray(image), size)
        return
    # Pillow multiplies colours by a fourth channel.
    for channel in range(image.shape[2]):
        plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
        out[..., channel] = _resized(plane, size)


def _resized(image: Image.Image, size: tuple[int, int]) -> Num[np.ndarray, "..."]:
    wide = image.resize((size[0], image.height), Image.Resampling.BILINEAR)
    return np.asarray(wide.resize(size, Image.Resampling.BILINEAR))


Indices = Int[np.ndarray, "..."]

# TF1 reads the cubic's weights from a table of this many steps.
_CUBIC_STEPS = 1024
_CUBIC_A = -0.75
# Output pixels at a time, so that intermediate arrays stay in a core's own cache.
_BLOCK = 160 * 300
_SCRATCH = Scratch()


def bilinear(image: Pixels, out: FloatPixels, *, align_corners: bool = False) -> None:
    """Interpolates linearly, columns before rows as TF1 does, which fixes the rounding."""
    rows, _ = _positions(image.shape[0], out.shape[0], align_corners)
    columns, _ = _positions(image.shape[1], out.shape[1], align_corners)
    bilinear_at(image, out, rows, columns)


def crop_and_resize(image: Pixels, window: Float64[np.ndarray, "4"], out: FloatPixels) -> None:
    """Resizes a window, normalised and within the image, as `tf.image.crop_and_resize`.

    Linear, without antialiasing. The corner pixels of `out` lie on the corners of the window,
    between pixels: of n columns, column i reads `x0 * (w - 1) + i * (x1 - x0) * (w - 1) / (n - 1)`;
    a single column reads the middle.
    """
    rows, columns = (
        _between(window[axis], window[axis + 2], image.shape[axis], out.shape[axis])
        for axis in (0, 1)
    )
    _bilinear_within(image, out, rows, columns)


def resize_part(
    image: Pixels, size: tuple[int, int], offset: tuple[int, int], out: FloatPixels, method: str
) -> None:
    """Resizes an image to `size` and writes a part to `out`, the same pixels as in the whole.

    The part begins at the row and column `offset` of the result. Of the `METHODS`, only `bilinear`
    computes the part alone.
    """
    if method != "bilinear":
        whole = np.empty((*size, image.shape[2]), np.float32)
        METHODS[method](image, whole)
        out[...] = whole[offset[0] :, offset[1] :][: out.shape[0], : out.shape[1]]
        return
    rows, columns = (
        _positions(image.shape[axis], size[axis], False)[0][offset[axis] :][: out.shape[axis]]
        for axis in (0, 1)
    )
    _bilinear_within(image, out, rows, columns)


def bilinear_half_pixel(image: Pixels, out: FloatPixels, *, align_corners: bool = False) -> None:
    """Interpolates linearly between centres at half pixels; `align_corners` has no effect."""
    rows, columns = (_half_pixels(image.shape[axis], out.shape[axis]) for axis in (0, 1))
    bilinear_at(image, out, rows, columns)


def nearest(image: Pixels, out: FloatPixels, *, align_corners: bool = False) -> None:
    """Takes the pixel at the floor of the source position, the nearest one with `align_corners`."""
    rows, columns = (
        _nearest_index(image.shape[axis], out.shape[axis], align_corners) for axis in (0, 1)
    )
    np.copyto(out, image[rows[:, None], columns])


def area(image: Pixels, out: FloatPixels, *, align_corners: bool = False) -> None:
    """Averages the source over the footprint of every output pixel."""
    _separable(image, out, _area_taps, align_corners)


def bicubic(image: Pixels, out: FloatPixels, *, align_corners: bool = False) -> None:
    """Interpolates with Keys' cubic, A = -0.75, its weights tabulated in 1024 steps."""
    _separable(image, out, _cubic_taps, align_corners)


class Method(Protocol):
    """A resizing method."""

    def __call__(self, image: Pixels, out: FloatPixels, *, align_corners: bool = False) -> None:
        """Resizes `image` into `out`."""


METHODS: dict[str, Method] = {
    "bilinear": bilinear,
    "nearest": nearest,
    "area": area,
    "bicubic": bicubic,
    "bilinear_antialias": bilinear_antialias,
    "bilinear_half_pixel": bilinear_half_pixel,
}
"""By the names of `schema.FixedShapeResizer.method`."""


def _positions(size: int, new_size: int, align_corners: bool) -> tuple[Floats, np.float32]:
    scale = np.float32(size) / np.float32(new_size)
    # A single pixel has no two corners to align.
    if align_corners and min(size, new_size) > 1:
        scale = np.float32(size - 1) / np.float32(new_size - 1)
    return np.arange(new_size, dtype=np.float32) * scale, scale


def _half_pixels(size: int, new_size: int) -> Floats:
    """Returns where the centre of each pixel of the result lies, at least the first centre."""
    centres = np.arange(new_size, dtype=np.float32) + np.float32(0.5)
    scaled = centres * (np.float32(size) / np.float32(new_size))
    return np.maximum(scaled - np.float32(0.5), np.float32(0))


def _between(start: float, stop: float, size: int, new_size: int) -> Floats:
    """Returns `[new_size]` evenly spaced positions; `start` and `stop` are shares of the image."""
    if new_size == 1:
        start = stop = (start + stop) / 2
    return np.linspace(start * (size - 1), stop * (size - 1), new_size, dtype=np.float32)


def _bilinear_within(
    image: Pixels,
    out: Float32[np.ndarray, "H W C"],
    y: Float32[np.ndarray, " H"],
    x: Float32[np.ndarray, " W"],
) -> None:
    """Calls `bilinear_at` with the part of the image that these positions read."""
    # `bilinear_at` processes all columns of the image. The differences are exact.
    top, left = int(y[0]), int(x[0])
    part = image[top : int(y[-1]) + 2, left : int(x[-1]) + 2]
    bilinear_at(part, out, y - np.float32(top), x - np.float32(left))


def bilinear_at(
    image: Pixels,
    out: Float32[np.ndarray, "H W C"],
    y: Float32[np.ndarray, " H"],
    x: Float32[np.ndarray, " W"],
) -> None:
    """Interpolates linearly at rows `y` and columns `x`, ascending and not negative."""
    height = len(y)
    top, bottom, y_share = _neighbours(image.shape[0], y)
    if 2 * height < image.shape[0]:
        # Most rows of a large photograph are never read: drop them first.
        rows, position = np.unique(np.concatenate([top, bottom]), return_inverse=True)
        image, top, bottom = image[rows], position[:height], position[height:]
    left, right, x_share = _neighbours(image.shape[1], x)
    x_share = np.repeat(x_share, image.shape[2])
    lines_of_block = max(_BLOCK // out.shape[1], 1)
    for start in range(0, height, lines_of_block):
        block = slice(start, min(start + lines_of_block, height))
        first, last = top[block.start], bottom[block.stop - 1]
        lines = _lerp_columns(image[first : last + 1], left, right, x_share)
        _lerp_rows(lines, top[block] - first, bottom[block] - first, y_share[block], out[block])


def _neighbours(size: int, position: Floats) -> tuple[Indices, Indices, Floats]:
    """Returns the source index below each position, the one above, and the weight of the latter."""
    below = position.astype(np.intp)  # positions are not negative: this is the floor
    share = position - below.astype(np.float32)
    return np.minimum(below, size - 1), np.minimum(below + 1, size - 1), share


def _nearest_index(size: int, new_size: int, align_corners: bool) -> Indices:
    position, _ = _positions(size, new_size, align_corners)
    # Halves are rounded up, as by C's roundf; numpy's rint rounds them to even.
    index = np.floor(position + np.float32(0.5)) if align_corners else position
    return np.minimum(index.astype(np.intp), size - 1)


def _lerp_columns(image: Pixels, left: Indices, right: Indices, share: Floats) -> Floats:
    """Returns `left + share * (right - left)` of every row, `[h, C * len(left)]`."""
    pick = _bytes_picker(image) if image.dtype == np.uint8 else _floats_picker(image)
    low, high = pick(left, "left"), pick(right, "right")
    high -= low
    high *= share
    high += low
    return high


def _lerp_rows(
    lines: Floats, top: Indices, bottom: Indices, share: Floats, out: FloatPixels
) -> None:
    above = _take_rows(lines, top, "above")
    result = _take_rows(lines, bottom, "below")
    result -= above
    result *= share[:, None]
    np.add(result, above, out=out.reshape(result.shape))


def _bytes_picker(image: Pixels) -> Callable[[Indices, str], Floats]:
    """Returns a picker of columns, which become rows first: numpy copies those as a whole."""
    height, width, channels = image.shape
    lines = cv2.transpose(image, dst=_SCRATCH("lines", (width, height, channels), np.uint8))

    def pick(columns: Indices, name: str) -> Floats:
        count = len(columns)
        # The indices are in range; mode="clip" copies without checking.
        picked = _SCRATCH("picked", (count, height, channels), np.uint8)
        lines.take(columns, axis=0, mode="clip", out=picked)
        turned = cv2.transpose(picked, dst=_SCRATCH("turned", (height, count, channels), np.uint8))
        result = _SCRATCH(name, (height, channels * count), np.float32)
        np.copyto(result, turned.reshape(height, -1))
        return result

    return pick


def _floats_picker(image: Pixels) -> Callable[[Indices, str], Floats]:
    height, _, channels = image.shape
    # Pixels as single items of 12 bytes are copied eight times as fast as three numbers.
    pixel = f"V{4 * channels}"
    pixels = np.asarray(image, np.float32).view(pixel)[..., 0]

    def pick(columns: Indices, name: str) -> Floats:
        picked = _SCRATCH(name, (height, channels * len(columns)), np.float32)
        pixels.take(columns, axis=1, mode="clip", out=picked.view(pixel))
        return picked

    return pick


def _take_rows(lines: Floats, rows: Indices, name: str) -> Floats:
    result = _SCRATCH(name, (len(rows), lines.shape[1]), np.float32)
    return lines.take(rows, axis=0, mode="clip", out=result)


Taps = tuple[Indices, Floats]
"""Source indices `[K, new_size]` and their weights `[K, new_size]`."""


def _separable(
    image: Pixels, out: FloatPixels, taps: Callable[[int, int, bool], Taps], align_corners: bool
) -> None:
    rows, row_weights = taps(image.shape[0], out.shape[0], align_corners)
    lines = np.zeros((out.shape[0], *image.shape[1:]), np.float32)
    for index, weight in zip(rows, row_weights, strict=True):
        lines += image[index] * weight[:, None, None]
    columns, column_weights = taps(image.shape[1], out.shape[1], align_corners)
    out[...] = 0
    for index, weight in zip(columns, column_weights, strict=True):
        out += lines[:, index] * weight[:, None]


def _nearest_taps(size: int, new_size: int, align_corners: bool) -> Taps:
    index = _nearest_index(size, new_size, align_corners)[None]
    return index, np.ones(index.shape, np.float32)


def _linear_taps(size: int, new_size: int, align_corners: bool) -> Taps:
    return _taps_at(size, _positions(size, new_size, align_corners)[0])


def _half_pixel_taps(size: int, new_size: int, align_corners: bool) -> Taps:
    del align_corners
    return _taps_at(size, _half_pixels(size, new_size))


def _taps_at(size: int, position: Floats) -> Taps:
    below, above, share = _neighbours(size, position)
    return np.stack([below, above]), np.stack([1 - share, share])


def _area_taps(size: int, new_size: int, align_corners: bool) -> Taps:
    start, scale = _positions(size, new_size, align_corners)
    end = np.arange(1, new_size + 1, dtype=np.float32) * scale
    first = start.astype(np.intp)
    count = int((np.ceil(end).astype(np.intp) - first).max())
    index = first + np.arange(count)[:, None]
    covered = np.minimum(index + 1, end) - np.maximum(index, start)
    weights = (np.maximum(covered, 0) / scale).astype(np.float32)
    return np.minimum(index, size - 1), weights


def _cubic_taps(size: int, new_size: int, align_corners: bool) -> Taps:
    position, _ = _positions(size, new_size, align_corners)
    below = position.astype(np.intp)
    share = np.rint((position - below) * _CUBIC_STEPS) / _CUBIC_STEPS
    index = below + np.arange(-1, 3)[:, None]
    distance = np.abs(share - np.arange(-1, 3)[:, None])
    a = _CUBIC_A
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    weights = np.where(distance <= 1, near, far).astype(np.float32)
    return index.clip(0, size - 1), weights


TAPS: dict[str, Callable[[int, int, bool], Taps]] = {
    "bilinear": _linear_taps,
    "bilinear_half_pixel": _half_pixel_taps,
    "nearest": _nearest_taps,
    "area": _area_taps,
    "bicubic": _cubic_taps,
}
"""Size, new size and `align_corners` -> the sums that a method is, for one axis.

`bilinear_antialias` is none: Pillow adds in integers.
"""
