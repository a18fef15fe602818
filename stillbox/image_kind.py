"""Channels and bits of images, and how colours of RGB become others.

Inside the program pixels are in 0..255 whatever their bits: white of a file with 16 bits is 255
too. Pixels of 8 bits are uint8. More bits are float32, and fractions are the bits below.
This module imports no numpy: experiments are read without it.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from stillbox.printing import count_text

if TYPE_CHECKING:
    import numpy as np

Number = TypeVar("Number", float, "np.ndarray")


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

    @property
    def settings(self) -> dict[str, int]:
        """The fields of an experiment that say so; none for RGB of 8 bits."""
        return {
            f"model.pixels.{name}": value
            for name, value in self._asdict().items()
            if value != self._field_defaults[name]
        }

    def __str__(self) -> str:
        return f"{count_text(self.channels, 'channel')} of {self.bits} bits"


RGB_8 = ImageKind()
"""Images of most data sets."""


def common_kind(kinds: Iterable[ImageKind]) -> ImageKind:
    """Returns the kind that holds all of some images; RGB if they differ in their channels."""
    channels, bits = (set(values) for values in zip(*kinds, strict=True))
    return ImageKind(channels.pop() if len(channels) == 1 else RGB_8.channels, max(bits))


def per_channel(values: Sequence[Number], channels: int) -> tuple[Number, ...]:
    """Returns numbers, or arrays, of R, G and B or of brightness for so many channels.

    Brightness has the mean of the three, and so does a fourth channel. Others stay as they are.
    """
    if len(values) == channels or len(values) not in (1, 3):
        return tuple(values)
    red, green, blue = tuple(values) * 3 if len(values) == 1 else values
    mean = (red + green + blue) / 3
    return {1: (mean,), 3: (red, green, blue), 4: (red, green, blue, mean)}[channels]
