"""Resizing of images and boxes to the network input, with padding.

Pixels stored as uint8 are rounded to the nearest of 0..255; halves to even.

An image may have been decoded at a fraction of its size. A pixel there is the mean of a square of
pixels, and lies at its middle. Its positions are those that the resizer reads in the whole image:
objects stay where they are.
"""

from typing import NamedTuple, cast

import cv2
import numpy as np
from jaxtyping import Bool
from numpy.random import Generator
from PIL import Image

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements
from stillbox.image_kind import per_channel
from stillbox.inputs.channels import with_channels
from stillbox.inputs.decode import FloatPixels
from stillbox.inputs.interpolation import METHODS, Scratch, bilinear_at, resize_part
from stillbox.inputs.sample import (
    REDUCTIONS,
    Boxes,
    Bytes,
    Pixels,
    ReducedPixels,
    Sample,
    Size,
    StoredSample,
)


def store(values: Pixels, out: Pixels) -> None:
    """Copies pixels to `out` of the same shape, rounded and clipped if that alone is uint8."""
    if out.dtype == np.uint8 and values.dtype != np.uint8:
        values = np.rint(values).clip(0, 255)
    np.copyto(out, values, casting="unsafe")


def bilinear_bytes(
    image: Bytes, out: Bytes, start: tuple[float, float], step: tuple[float, float]
) -> None:
    """Interpolates linearly at rows and columns `start + step * n`; the edge continues outside.

    The result equals `interpolation.bilinear`, rounded, except for values that float32 cannot
    distinguish from a half.
    """
    matrix = np.array([[step[1], 0, start[1]], [0, step[0], start[0]]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    size = out.shape[1], out.shape[0]
    cv2.warpAffine(image, matrix, size, dst=out, flags=flags, borderMode=cv2.BORDER_REPLICATE)


_SCRATCH = Scratch()

ENLARGE_CANVAS = (
    "enlarge model.resizer.canvas, or take a resizer that shrinks (fixed_shape, keep_aspect_ratio)"
)
"""Fix for an image that does not fit."""


class Placement(NamedTuple):
    """Place of an image in the network input: a part of the resized image, in the upper left."""

    size: Size
    """Height and width of the whole image after resizing."""
    offset: Size
    """Row and column of the resized image where the part begins."""
    shown: Size
    """Height and width of the part."""


def place_image(size: Size, resizer: schema.Resizer, rng: Generator | None = None) -> Placement:
    """Returns the placement of an image of `size`; `rng` draws scale and offset for jitter."""
    if isinstance(resizer, schema.ScaleJitterResizer) and rng is not None:
        scale = rng.uniform(resizer.min_scale, resizer.max_scale)
        whole = _fitted(size, resizer, scale)
        frame = resizer.height, resizer.width
        room = [max(0, side - most) for side, most in zip(whole, frame, strict=True)]
        y, x = (int(share * extra) for share, extra in zip(rng.random(2), room, strict=True))
        return Placement(whole, (y, x), (min(whole[0], frame[0]), min(whole[1], frame[1])))
    whole = resized_size(size, resizer)
    return Placement(whole, (0, 0), whole)


def place_boxes(
    boxes: Boxes, placement: Placement, resizer: schema.Resizer
) -> tuple[Boxes, Bool[np.ndarray, " N"]]:
    """Returns boxes of the image, normalised to the padded network input, and which are visible."""
    canvas = np.tile(np.array(resizer.input_size, np.float32), 2)
    if not isinstance(resizer, schema.ScaleJitterResizer):
        shrink = np.tile(np.array(placement.size, np.float32), 2) / canvas
        return boxes * shrink, np.ones(len(boxes), np.bool_)
    whole, offset = (np.tile(np.array(pair, np.float32), 2) for pair in placement[:2])
    # As in the original, edges are at most the frame's last pixel.
    most = np.tile(np.array([resizer.height, resizer.width], np.float32), 2) - 1
    clipped = np.clip(boxes * whole - offset, 0, most)
    return clipped / canvas, (clipped[:, 2:] > clipped[:, :2]).all(axis=1)


def resized_size(size: Size, resizer: schema.Resizer) -> Size:
    """Returns height and width of an image of `size` inside the network input.

    With the aspect ratio kept, the short side becomes `min_dimension` unless that makes the long
    one greater than `max_dimension`. Computed in float32, rounded half to even, as TF1.
    """
    resized: Size = implementation_of(resizer)(resizer, size)
    return resized


@implements(schema.FixedShapeResizer)
def _fixed(resizer: schema.FixedShapeResizer, size: Size) -> Size:
    return resizer.height, resizer.width


@implements(schema.KeepAspectRatioResizer)
def _aspect_ratio_kept(resizer: schema.KeepAspectRatioResizer, size: Size) -> Size:
    height, width = _scaled(size, resizer.min_dimension, min(size))
    if max(height, width) > resizer.max_dimension:
        height, width = _scaled(size, resizer.max_dimension, max(size))
    return height, width


@implements(schema.ScaleJitterResizer)
def _fitted_to_frame(resizer: schema.ScaleJitterResizer, size: Size) -> Size:
    return _fitted(size, resizer, 1.0)


@implements(schema.PadToMultipleResizer)
@implements(schema.IdentityResizer)
def _unchanged(resizer: schema.Resizer, size: Size) -> Size:
    return size


def _scaled(size: Size, target: int, side: int) -> Size:
    scale = np.float32(target) / np.float32(side)
    height, width = (max(int(np.rint(np.float32(length) * scale)), 1) for length in size)
    return height, width


def _fitted(size: Size, resizer: schema.ScaleJitterResizer, scale: float) -> Size:
    """Fits `size` into the resizer's frame times `scale`; float32 and half to even, as TF1."""
    sides = np.array(size, np.float32)
    frame = np.rint(np.float32(scale) * np.array([resizer.height, resizer.width], np.float32))
    height, width = np.maximum(np.rint(sides * (frame / sides).min()), 1).astype(int).tolist()
    return height, width


@implements(schema.ConditionalShapeResizer)
def _conditional(resizer: schema.ConditionalShapeResizer, size: Size) -> Size:
    if resizer.condition == "greater":
        side = max(size)
        target = min(side, resizer.threshold)
    else:
        side = min(size)
        target = max(side, resizer.threshold)
    # The original multiplies by a float32 ratio and truncates, which can lose a pixel.
    ratio = np.float32(target) / np.float32(side)
    height, width = (max(int(np.float32(length) * ratio), 1) for length in size)
    return height, width


def misfit(size: Size, resizer: schema.Resizer) -> str | None:
    """Returns why an image of `size` does not fit a resizer's `canvas`; None if it does."""
    height, width = resized_size(size, resizer)
    rows, columns = resizer.input_size
    if height <= rows and width <= columns:
        return None
    was = "" if (height, width) == size else f", {height}x{width} after resizing"
    return f"{size[0]}x{size[1]}{was} (height x width), canvas {rows}x{columns}"


def refuse_misfit(size: Size, resizer: schema.Resizer, where: str | None = None) -> None:
    """Refuses an image that has a `misfit`; `where` names it.

    Raises:
        UserError: the image is larger than the canvas of a resizer that does not shrink.
    """
    if reason := misfit(size, resizer):
        problem = f"the image does not fit the canvas: {reason}"
        raise UserError(problem, where=where, fix=ENLARGE_CANVAS)


def resize_into(
    image: Pixels, resizer: schema.Resizer, out: Pixels, placement: Placement | None = None
) -> Size:
    """Resizes `image`, which has no `misfit`, into the upper left of `out` and pads the rest.

    `out` has the resizer's `input_size`; values are rounded if it is uint8. The default placement
    is the one without an `rng`. Returns height and width of the image inside `out`.
    """
    placement = placement or place_image((image.shape[0], image.shape[1]), resizer)
    height, width = placement.shown
    _resize_shown(image, resizer, placement, out[:height, :width])
    pad(out, resizer, placement.shown)
    return placement.shown


def pad(out: Pixels, resizer: schema.Resizer, shown: Size) -> None:
    """Fills what lies below and to the right of an image of the size `shown`."""
    channels = out.shape[2]
    color = np.array(per_channel(resizer.pad_value, channels), np.float32)
    if out.dtype == np.uint8:
        color = np.rint(color)
    # Rows of numbers: numpy is slow at repeating three.
    row = np.tile(color, out.shape[1]).astype(out.dtype)
    lines = out.reshape(out.shape[0], -1)
    lines[shown[0] :] = row
    lines[: shown[0], channels * shown[1] :] = row[channels * shown[1] :]


def _resize_shown(
    image: Pixels, resizer: schema.Resizer, placement: Placement, part: Pixels
) -> None:
    size, (y, x), shown = placement
    if size == image.shape[:2]:
        # Every method would return the same pixels.
        store(image[y : y + shown[0], x : x + shown[1]], part)
        return
    if resizer.method is None:
        raise TypeError(f"{type(resizer).__name__} changes the size of images and has no method")
    if part.dtype != np.uint8:
        _resize_floats(image, resizer, placement, part)
    elif resizer.method == "bilinear" and image.dtype == np.uint8 and not resizer.align_corners:
        step = image.shape[0] / size[0], image.shape[1] / size[1]
        bilinear_bytes(image, part, (y * step[0], x * step[1]), step)
    else:
        floats = _SCRATCH("floats", part.shape, np.float32)
        _resize_floats(image, resizer, placement, floats)
        store(floats, part)


def _resize_floats(
    image: Pixels, resizer: schema.Resizer, placement: Placement, part: FloatPixels
) -> None:
    size, offset, shown = placement
    method = cast(str, resizer.method)
    if size == shown:
        METHODS[method](image, part, align_corners=resizer.align_corners)
    else:
        resize_part(image, size, offset, part, method)


def resize_image(
    image: Pixels, resizer: schema.Resizer, *, where: str | None = None
) -> tuple[FloatPixels, Size]:
    """Returns an image resized to the padded network input, and its height and width there.

    Raises:
        UserError: see `refuse_misfit`.
    """
    refuse_misfit((image.shape[0], image.shape[1]), resizer, where)
    out = np.empty((*resizer.input_size, image.shape[2]), np.float32)
    return out, resize_into(image, resizer, out)


def draw_reduced(
    sample: Sample, resizer: schema.Resizer, out: Pixels, placement: Placement
) -> bool:
    """Decodes the image of a sample at a fraction of its size and resizes it, as `resize_into`.

    Returns False, with nothing done, if the image is decoded already or not shrunk by 2 or more, or
    the method is another than `bilinear` and `bilinear_antialias`.

    Raises:
        ImageError: the file is truncated or corrupt.
    """
    factor = reduction(sample.size, placement.size)
    method = resizer.method
    if factor == 1 or method not in ("bilinear", "bilinear_antialias"):
        return False
    if not isinstance(sample, StoredSample):
        return False
    height, width = placement.shown
    resize_reduced(sample.stored.reduced(factor), placement, method, out[:height, :width])
    pad(out, resizer, placement.shown)
    return True


def reduction(size: Size, resized: Size) -> int:
    """Returns the greatest of `REDUCTIONS` that leaves at least `resized` of `size`; 1: none."""
    least = min(side // new for side, new in zip(size, resized, strict=True))
    return next((factor for factor in REDUCTIONS if factor <= least), 1)


def resize_reduced(image: ReducedPixels, placement: Placement, method: str, out: Pixels) -> None:
    """Resizes a reduced window by `bilinear` or `bilinear_antialias` and writes the part shown."""
    if method == "bilinear_antialias":
        store(_antialiased(image, placement), out)
        return
    # The middle of the first square is this far from the corner of the first pixel.
    middle = (image.factor - 1) / 2
    step = [whole / new for whole, new in zip(image.size, placement.size, strict=True)]
    start = [
        (first * each + beside - middle) / image.factor
        for first, each, beside in zip(placement.offset, step, image.offset, strict=True)
    ]
    step = [each / image.factor for each in step]
    if out.dtype == np.uint8:
        bilinear_bytes(image.pixels, out, (start[0], start[1]), (step[0], step[1]))
    else:
        rows, columns = (
            np.maximum(start[axis] + step[axis] * np.arange(out.shape[axis]), 0).astype(np.float32)
            for axis in (0, 1)
        )
        bilinear_at(image.pixels, out, rows, columns)


def _antialiased(image: ReducedPixels, placement: Placement) -> FloatPixels:
    top, left = (beside / image.factor for beside in image.offset)
    height, width = (side / image.factor for side in image.size)
    rows, columns = placement.size
    box = (left, top, left + width, top + height)
    # Edges of images are rounded up to whole squares, never down.
    # Without an axis of one channel, which Pillow does not take.
    pixels = Image.fromarray(image.pixels[..., 0] if image.pixels.shape[2] == 1 else image.pixels)
    whole = with_channels(
        np.asarray(pixels.resize((columns, rows), Image.Resampling.BILINEAR, box))
    )
    (y, x), (height_shown, width_shown) = placement.offset, placement.shown
    return whole[y : y + height_shown, x : x + width_shown].astype(np.float32)
