"""Bilinear resizing with a triangle filter that widens with the scale, as Pillow's.

TF1's bilinear reads four pixels at any scale; models trained on antialiased images (Pillow, or
`antialias` of TF2 and JAX) lose AP with it.
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
    """Resizes `[h, w, 3]` into `out` `[H, W, 3]` as Pillow; uint8 is rounded after each axis.

    Pillow 13 begins with the axis that it estimates to be cheaper, which changes the rounding. Two
    calls fix the order of earlier releases, columns first. `align_corners` has no effect: centres
    are at half pixels.
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
