"""Mirroring, turning, padding and repeating: pixels change their places, not their values."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class RandomHorizontalFlip:
    """Mirrors image and boxes."""

    kind: ClassVar[str] = "random_horizontal_flip"
    probability: float = 0.5
    """How often."""


@dataclass(frozen=True, kw_only=True)
class RandomVerticalFlip:
    """Turns image and boxes upside down."""

    kind: ClassVar[str] = "random_vertical_flip"
    probability: float = 0.5
    """How often."""


@dataclass(frozen=True, kw_only=True)
class RandomRotation90:
    """Turns image and boxes by 90 degrees against the clock."""

    kind: ClassVar[str] = "random_rotation90"
    probability: float = 0.5
    """How often."""


@dataclass(frozen=True, kw_only=True)
class RandomSelfConcatImage:
    """Puts the image below or beside itself, boxes included."""

    kind: ClassVar[str] = "random_self_concat_image"
    vertical_probability: float = 0.1
    """How often below."""
    horizontal_probability: float = 0.1
    """How often beside; independent of the other."""


@dataclass(frozen=True, kw_only=True)
class RandomPadImage:
    """Puts the image at a random place on a larger canvas of random size."""

    kind: ClassVar[str] = "random_pad_image"
    min_height: int | None = None
    """Least height of the canvas, in pixels; the image's own where that is more, or for null."""
    min_width: int | None = None
    """Least width of the canvas, likewise."""
    max_height: int | None = None
    """Greatest height of the canvas (excluded), in pixels; null: twice the image's."""
    max_width: int | None = None
    """Greatest width of the canvas, likewise."""
    pad_color: tuple[float, ...] = ()
    """Red, green and blue of the canvas, in 0..255; empty: the mean colour of the image."""


@dataclass(frozen=True, kw_only=True)
class RandomAbsolutePadImage:
    """Adds less than so many rows and columns, at random on all sides."""

    kind: ClassVar[str] = "random_absolute_pad_image"
    max_height_padding: int = 0
    """Rows that are added at most (excluded)."""
    max_width_padding: int = 0
    """Columns that are added at most (excluded)."""
    pad_color: tuple[float, ...] = ()
    """Red, green and blue of the padding, in 0..255; empty: the mean colour of the image."""
