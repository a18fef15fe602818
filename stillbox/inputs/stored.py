"""A JPEG file that is decoded when its pixels are needed, after crops and mirroring.

What a crop leaves out at the bottom is never decoded, and what is shrunk much can be decoded at a
fraction of its size.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from stillbox.inputs.decode import ImageError, decode_image
from stillbox.inputs.jpeg_header import JpegHeader, read_jpeg_header, upper_rows

Size = tuple[int, int]
REDUCTIONS = (8, 4, 2)
"""Divisors of height and width that JPEG files can be decoded with, from the greatest."""


class ReducedPixels(NamedTuple):
    """A window of an image, decoded at a fraction of its size."""

    pixels: NDArray[np.uint8]
    """`[h, w, 3]` RGB, each the mean of `factor` by `factor` pixels of the image."""
    factor: int
    offset: Size
    """Rows and columns of the image between the first pixel's corner and the window's."""
    size: Size
    """Height and width of the window, in pixels of the image."""


@dataclass(frozen=True)
class StoredImage:
    """A window of a JPEG file, possibly mirrored."""

    data: bytes
    header: JpegHeader
    corner: Size
    """Row and column of the file's image where the window begins."""
    size: Size
    """Height and width of the window."""
    mirrored: bool = False
    """Left and right are exchanged, after the crop."""

    @classmethod
    def read(cls, data: bytes) -> "StoredImage | None":
        """Returns the whole image of a JPEG file; None for any other or a damaged one."""
        header = read_jpeg_header(data)
        return cls(data, header, (0, 0), header[:2]) if header else None

    def crop(self, y: int, x: int, height: int, width: int) -> "StoredImage":
        """Returns a window of the window."""
        left = self.size[1] - x - width if self.mirrored else x
        corner = self.corner[0] + y, self.corner[1] + left
        return replace(self, corner=corner, size=(height, width))

    def mirror(self) -> "StoredImage":
        """Exchanges left and right."""
        return replace(self, mirrored=not self.mirrored)

    def pixels(self) -> NDArray[np.uint8]:
        """Decodes the window, `[h, w, 3]` RGB: the pixels of the whole image, decoded and cut.

        Raises:
            ImageError: the data are truncated or corrupt.
        """
        return self.reduced(1).pixels

    def reduced(self, factor: int) -> ReducedPixels:
        """Decodes the window at 1 / `factor` of its size, 1 or one of `REDUCTIONS`.

        Raises:
            ImageError: the data are truncated or corrupt.
        """
        (y, x), (height, width) = self.corner, self.size
        top, left, bottom, right = (
            y // factor,
            x // factor,
            -(-(y + height) // factor),
            -(-(x + width) // factor),
        )
        whole = self._decoded(factor, y + height)
        part = whole[top:bottom, left:right]
        beside = x - left * factor
        if self.mirrored:
            part, beside = cast(NDArray[np.uint8], cv2.flip(part, 1)), right * factor - x - width
        return ReducedPixels(part, factor, (y - top * factor, beside), self.size)

    def _decoded(self, factor: int, rows: int) -> NDArray[np.uint8]:
        """Decodes at least the upper `rows`."""
        part = upper_rows(self.data, self.header, rows)
        if part is not self.data:
            try:
                return decode_image(part, reduction=factor)
            except ImageError:  # as of the whole file
                pass
        return decode_image(self.data, reduction=factor)
