"""One image with its boxes: decoded, or a JPEG file that is decoded when its pixels are needed.

A stored file is decoded after crops and mirroring. What a crop leaves out at the bottom is never
decoded, and what is shrunk much can be decoded at a fraction of its size.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float32, Float64, Int, Int32

from stillbox.image_kind import RGB_8, ImageKind
from stillbox.inputs.channels import with_channels
from stillbox.inputs.decode import (
    Bytes,
    ImageError,
    JpegHeader,
    Pixels,
    decode_image,
    read_jpeg_header,
    upper_rows,
)

Size = tuple[int, int]
REDUCTIONS = (8, 4, 2)
"""Divisors of height and width that JPEG files can be decoded with, from the greatest."""


class ReducedPixels(NamedTuple):
    """A window of an image, decoded at a fraction of its size."""

    pixels: Bytes
    """Each the mean of `factor` by `factor` pixels of the image."""
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
    kind: ImageKind = RGB_8
    """Of the decoded pixels; 8 bits."""

    @classmethod
    def read(cls, data: bytes, kind: ImageKind = RGB_8) -> "StoredImage | None":
        """Returns the whole image of a JPEG file; None for any other or a damaged one.

        None too for a kind of more than 8 bits, and for one of 4 channels.
        """
        header = read_jpeg_header(data) if kind.bits == 8 and kind.channels < 4 else None
        return cls(data, header, (0, 0), header[:2], kind=kind) if header else None

    def crop(self, y: int, x: int, height: int, width: int) -> "StoredImage":
        """Returns a window of the window."""
        left = self.size[1] - x - width if self.mirrored else x
        corner = self.corner[0] + y, self.corner[1] + left
        return replace(self, corner=corner, size=(height, width))

    def mirror(self) -> "StoredImage":
        """Exchanges left and right."""
        return replace(self, mirrored=not self.mirrored)

    def pixels(self) -> Bytes:
        """Decodes the window: the pixels of the whole image, decoded and cut.

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
        top, left = y // factor, x // factor
        bottom, right = -(-(y + height) // factor), -(-(x + width) // factor)
        decoded = self._decoded(factor, y + height)
        if decoded.shape[0] < bottom or decoded.shape[1] < right:
            # A forged file has a second header, which decoders do not read.
            raise ImageError("the image is smaller than its header says")
        part = decoded[top:bottom, left:right]
        beside = x - left * factor
        if self.mirrored:
            part, beside = with_channels(cv2.flip(part, 1)), right * factor - x - width
        return ReducedPixels(part, factor, (y - top * factor, beside), self.size)

    def _decoded(self, factor: int, rows: int) -> Bytes:
        part = upper_rows(self.data, self.header, rows)
        if part is not self.data:
            try:
                return self._pixels(part, factor)
            except ImageError:  # as of the whole file
                pass
        return self._pixels(self.data, factor)

    def _pixels(self, data: bytes, factor: int) -> Bytes:
        return decode_image(data, kind=self.kind, reduction=factor)


Floats = Float32[np.ndarray, "..."]
Doubles = Float64[np.ndarray, "..."]
Boxes = Float32[np.ndarray, "N 4"]
"""ymin, xmin, ymax, xmax."""

_PER_BOX = ("boxes", "class_ids", "weights")


@dataclass(frozen=True)
class Sample:
    """An image and its N boxes. The arrays are read-only: they may belong to the cache."""

    image: Pixels
    boxes: Boxes
    """Normalised to `image`."""
    class_ids: Int32[np.ndarray, " N"]
    """Label map ids; a batch has class indices."""
    weights: Float32[np.ndarray, " N"]
    """0 for ignored boxes."""

    @property
    def size(self) -> Size:
        """Height and width of the image in pixels."""
        return self.image.shape[0], self.image.shape[1]

    def decoded(self) -> "Sample":
        """Returns the sample with its pixels; see `StoredSample`."""
        return self

    def select(self, keep: Bool[np.ndarray, " N"] | Int[np.ndarray, " K"]) -> "Sample":
        """Returns the sample with the boxes of a mask, or of indices, which may repeat."""
        return replace(self, **{name: getattr(self, name)[keep] for name in _PER_BOX})

    @property
    def nbytes(self) -> int:
        """Bytes that all its arrays take."""
        return sum(int(getattr(self, name).nbytes) for name in ("image", *_PER_BOX))


@dataclass(frozen=True)
class StoredSample(Sample):
    """A sample of a JPEG file that is not decoded yet; `image` has no pixels."""

    stored: StoredImage
    """The image, as the operations so far have left it."""

    @property
    def size(self) -> Size:
        """Height and width of the image in pixels."""
        return self.stored.size

    def decoded(self) -> Sample:
        """Returns the sample with its pixels.

        Raises:
            ImageError: the file is truncated or corrupt.
        """
        return Sample(self.stored.pixels(), *(getattr(self, name) for name in _PER_BOX))
