"""Channels and bits of images, and how colours of RGB become others.

Inside the program pixels are in 0..255 whatever their bits: white of a file with 16 bits is 255
too. Pixels of 8 bits are uint8, those of more bits float32, whose fractions are the bits below.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Num, UInt8


class ImageKind(NamedTuple):
    """What a pixel of an image is."""

    channels: int = 3
    """1: brightness, 3: RGB, 4: RGB and one more."""
    bits: int = 8
    """Bits of a value: white is `2^bits - 1`."""

    @property
    def dtype(self) -> str:
        """Type of decoded pixels."""
        return "uint8" if self.bits == 8 else "float32"

    @property
    def white(self) -> int:
        """The greatest value in a file."""
        return (1 << self.bits) - 1

    def __str__(self) -> str:
        return f"{self.channels} channel{'s' * (self.channels > 1)} of {self.bits} bits"


RGB_8 = ImageKind()
"""Images of most data sets."""


def per_channel(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """Returns numbers of R, G and B, or of brightness, as numbers of so many channels.

    Brightness has the mean of the three, and so does a fourth channel. Others stay as they are.
    """
    if len(values) == channels or len(values) not in (1, 3):
        return tuple(values)
    colors = tuple(values) * 3 if len(values) == 1 else tuple(values)
    mean = sum(colors) / 3 if len(set(colors)) > 1 else colors[0]
    return {1: (mean,), 3: colors, 4: (*colors, mean)}[channels]


def for_people(pixels: Num[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "H W 3"]:
    """Returns an image as RGB of 8 bits: brightness is gray, and a fourth channel is left out."""
    colors = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3]
    if colors.dtype != np.uint8:
        colors = np.rint(colors).clip(0, 255).astype(np.uint8)
    return np.ascontiguousarray(colors)
