"""Pixels as uint8, rounded to the nearest of 0..255; halves to even."""

import cv2
import numpy as np

from stillbox.inputs.sample import Bytes, Pixels


def store(values: Pixels, out: Pixels) -> None:
    """Copies pixels to `out` of the same shape, rounded and clipped if that alone is uint8."""
    if out.dtype == np.uint8 and values.dtype != np.uint8:
        values = np.rint(values).clip(0, 255)
    np.copyto(out, values, casting="unsafe")


def bilinear_bytes(
    image: Bytes, out: Bytes, start: tuple[float, float], step: tuple[float, float]
) -> None:
    """Interpolates linearly at `start + step * n`, rows and columns; the edge continues outside.

    As `interpolation.bilinear` and then rounded, but for what float32 cannot tell from a half.

    Args:
        image: `[h, w, 3]`.
        out: `[H, W, 3]`; written to.
        start: row and column of the image that the first pixel of `out` reads.
        step: rows and columns of the image from one pixel of `out` to the next.
    """
    matrix = np.array([[step[1], 0, start[1]], [0, step[0], start[0]]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    size = out.shape[1], out.shape[0]
    cv2.warpAffine(image, matrix, size, dst=out, flags=flags, borderMode=cv2.BORDER_REPLICATE)
