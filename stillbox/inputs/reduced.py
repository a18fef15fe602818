"""Resizing of images that were decoded at a fraction of their size.

A pixel there is the mean of a square of pixels, and lies at its middle. Positions are those that
the resizer reads in the whole image, so that objects stay where they are.
"""

from typing import cast

import numpy as np
from PIL import Image

from stillbox.experiment import schema
from stillbox.inputs.interpolation import bilinear_at
from stillbox.inputs.resize import Placement, pad
from stillbox.inputs.rounded import bilinear_bytes, store
from stillbox.inputs.sample import Bytes, Floats, Pixels, Sample, StoredSample
from stillbox.inputs.stored import REDUCTIONS, ReducedPixels, Size


def draw_reduced(
    sample: Sample, resizer: schema.Resizer, out: Pixels, placement: Placement
) -> bool:
    """Decodes the image of a sample at a fraction of its size and resizes it, as `resize_into`.

    Returns:
        False, with nothing done, if the image is decoded already or not shrunk by 2 or more, or the
        method is another than `bilinear` and `bilinear_antialias`.

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
    """Resizes a reduced image and keeps the part that is shown.

    Args:
        image: what to resize.
        placement: of the window that it shows.
        method: `bilinear` or `bilinear_antialias`.
        out: `[H, W, 3]`, the size of the part; written to.
    """
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
        bilinear_bytes(image.pixels, cast(Bytes, out), (start[0], start[1]), (step[0], step[1]))
    else:
        rows, columns = (
            np.maximum(start[axis] + step[axis] * np.arange(out.shape[axis]), 0).astype(np.float32)
            for axis in (0, 1)
        )
        bilinear_at(image.pixels, cast(Floats, out), rows, columns)


def _antialiased(image: ReducedPixels, placement: Placement) -> Floats:
    top, left = (beside / image.factor for beside in image.offset)
    height, width = (side / image.factor for side in image.size)
    rows, columns = placement.size
    box = (left, top, left + width, top + height)
    # Edges of images are rounded up to whole squares, never down.
    whole = Image.fromarray(image.pixels).resize((columns, rows), Image.Resampling.BILINEAR, box)
    (y, x), (height_shown, width_shown) = placement.offset, placement.shown
    return np.asarray(whole)[y : y + height_shown, x : x + width_shown].astype(np.float32)
