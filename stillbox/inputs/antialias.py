"""Shrinking with a triangle filter that widens with the scale, so that no pixel goes unseen.

TF1's bilinear looks at four pixels whatever the scale; a model whose makers resized with Pillow
(or with TF2's or JAX's `antialias`) loses AP when it is fed that.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def bilinear_antialias(
    image: NDArray[np.uint8] | NDArray[np.float32],
    out: NDArray[np.float32],
    *,
    align_corners: bool = False,
) -> None:
    """Resizes as Pillow does: columns first, then rows, uint8 rounded to whole numbers after each.

    Pillow 13 begins with the axis that it takes for the cheaper one, which changes the rounding.
    Two calls fix the order, which is that of earlier releases.

    Args:
        image: `[h, w, 3]`.
        out: `[H, W, 3]`, written to; it may be a part of a larger array.
        align_corners: a switch of TF1's methods, without meaning for half-pixel centres.
    """
    size = (out.shape[1], out.shape[0])
    if image.dtype == np.uint8:
        out[:] = _resized(Image.fromarray(image), size)
        return
    for channel in range(3):
        plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
        out[..., channel] = _resized(plane, size)


def _resized(image: Image.Image, size: tuple[int, int]) -> NDArray[np.generic]:
    wide = image.resize((size[0], image.height), Image.Resampling.BILINEAR)
    return np.asarray(wide.resize(size, Image.Resampling.BILINEAR))
