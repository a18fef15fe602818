"""Brightness of pixels: images of more than 8 bits, and images that use few of the 256 values.

Deep images have integers of more than 8 bits, or floats. Files do not say which value is white: 12
bits of a camera lie in 16, and floats reach from 0 to 1, 255 or 65535. The brightest pixel decides,
of all images of a set where there is one, so that a dark image stays darker than the others.
"""

from typing import NamedTuple, cast

import numpy as np
from PIL import Image

from stillbox.records.problems import BadRecordError

FEW_VALUES = "image that uses few of the 256 values"
"""Reason of a problem."""

_MOST_FEW = 32
# Pixels of a side of the sample that shows at once that most images use many values.
_SAMPLE = 8
# Bits of sensors. A set that needs 11 bits is one of 12 without anything bright.
_USUAL_BITS = (8, 10, 12, 14, 16)
_BRIGHTEST_FLOAT = 65535


class Brightest(NamedTuple):
    """The brightest pixels of deep images."""

    integer: int = 0
    real: float = 0.0

    def joined(self, other: "Brightest") -> "Brightest":
        """Returns the brightest of both."""
        return Brightest(max(self.integer, other.integer), max(self.real, other.real))


NO_DEEP = Brightest()
"""Of images without a deep one among them."""


def is_deep(image: Image.Image) -> bool:
    """Returns whether pixels have more than 8 bits, by the header."""
    return image.mode == "F" or image.mode.startswith("I")


def has_wide_colors(image: Image.Image) -> bool:
    """Returns whether channels have 16 bits, by the header, of which Pillow reads the upper 8.

    Pillow forgets it as it reads the pixels.
    """
    wide = image.format in ("PNG", "TIFF") and ";16" in repr(getattr(image, "tile", ""))
    return wide and not is_deep(image)


def brightest_pixel(image: Image.Image) -> Brightest:
    """Returns the brightest pixel of a deep image; zeros for another, which is not decoded.

    Raises:
        BadRecordError: a pixel is negative, no number, or a float above 65535.
    """
    if not is_deep(image):
        return NO_DEEP
    pixels = np.asarray(image)
    low, high = pixels.min(), pixels.max()
    # Comparisons with NaN, which both are if any pixel is, are false.
    if low >= 0 and image.mode != "F":
        return Brightest(integer=int(high))
    if low >= 0 and high <= _BRIGHTEST_FLOAT:
        return Brightest(real=float(high))
    detail = f"{image.mode} from {low:g} to {high:g}; save the image with 8 bits"
    raise BadRecordError("pixels that are no brightness", detail)


def used_bits(mode: str, brightest: Brightest) -> int:
    """Returns the bits of deep pixels; 0 for floats from 0 to 1."""
    if mode == "F" and brightest.real <= 1:
        return 0
    needed = int(brightest.real if mode == "F" else brightest.integer).bit_length()
    return next((bits for bits in _USUAL_BITS if bits >= needed), needed)


def in_eight_bits(image: Image.Image, of_set: Brightest = NO_DEEP) -> Image.Image:
    """Returns the upper 8 of the bits that a deep image and its set use; others as they are.

    Raises:
        BadRecordError: see `brightest_pixel`.
    """
    return upper_bits(image, brightest_pixel(image).joined(of_set))


def upper_bits(image: Image.Image, brightest: Brightest) -> Image.Image:
    """Returns what `in_eight_bits` does, given the brightest pixel of the image and its set."""
    if not is_deep(image):
        return image
    bits, pixels = used_bits(image.mode, brightest), np.asarray(image)
    if not bits:
        return Image.fromarray(np.rint(pixels * 255).astype(np.uint8))
    whole = pixels.astype(np.int32) if image.mode == "F" else pixels
    return Image.fromarray((whole >> (bits - 8)).astype(np.uint8))


def few_values(image: Image.Image) -> int:
    """Returns the values from the darkest to the brightest of an image if they are few, else 0.

    `image` has 8 bits. Few are at most 32, in each channel; transparency is left out.
    """
    width, height = (min(side, _SAMPLE) for side in image.size)
    return _few(image.resize((width, height), Image.Resampling.NEAREST)) and _few(image)


def _few(image: Image.Image) -> int:
    # Pillow warns of palettes with transparency that become RGB.
    plain = image if image.mode in ("RGB", "RGBA") else image.convert("RGBA")
    ranges = cast("tuple[tuple[int, int], ...]", plain.getextrema())[:3]
    values = 1 + max(high - low for low, high in ranges)
    return values if values <= _MOST_FEW else 0
