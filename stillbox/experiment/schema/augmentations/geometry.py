"""Mirroring, turning, padding and repeating: pixels change their places, not their values."""

from dataclasses import dataclass

from stillbox.experiment.schema.augmentations.base import Augmentation
from stillbox.experiment.schema.ranges import *


@dataclass(frozen=True, kw_only=True)
class RandomHorizontalFlip(Augmentation, kind="random_horizontal_flip"):
    """Mirrors image and boxes."""

    probability: Fraction = 0.5
    """How often."""


@dataclass(frozen=True, kw_only=True)
class RandomVerticalFlip(Augmentation, kind="random_vertical_flip"):
    """Turns image and boxes upside down."""

    probability: Fraction = 0.5
    """How often."""


@dataclass(frozen=True, kw_only=True)
class RandomRotation90(Augmentation, kind="random_rotation90"):
    """Turns image and boxes by 90 degrees against the clock."""

    probability: Fraction = 0.5
    """How often."""


@dataclass(frozen=True, kw_only=True)
class RandomSelfConcatImage(Augmentation, kind="random_self_concat_image"):
    """Puts the image below or beside itself, boxes included."""

    vertical_probability: Fraction = 0.1
    """How often below."""
    horizontal_probability: Fraction = 0.1
    """How often beside; independent of the other."""


@dataclass(frozen=True, kw_only=True)
class RandomPadImage(Augmentation, kind="random_pad_image"):
    """Puts the image at a random place on a larger canvas of random size."""

    min_height: PositiveInt | None = None
    """Least height of the canvas, in pixels; the image's own where that is more, or for null."""
    min_width: PositiveInt | None = None
    """Least width of the canvas, likewise."""
    max_height: PositiveInt | None = None
    """Greatest height of the canvas (excluded), in pixels; null: twice the image's."""
    max_width: PositiveInt | None = None
    """Greatest width of the canvas, likewise."""
    pad_color: tuple[ColorValue, ...] = ()
    """Red, green and blue of the canvas, in 0..255; empty: the mean colour of the image."""


@dataclass(frozen=True, kw_only=True)
class RandomAbsolutePadImage(Augmentation, kind="random_absolute_pad_image"):
    """Adds less than so many rows and columns, at random on all sides."""

    max_height_padding: NonNegativeInt = 0
    """Rows that are added at most (excluded)."""
    max_width_padding: NonNegativeInt = 0
    """Columns that are added at most (excluded)."""
    pad_color: tuple[ColorValue, ...] = ()
    """Red, green and blue of the padding, in 0..255; empty: the mean colour of the image."""
