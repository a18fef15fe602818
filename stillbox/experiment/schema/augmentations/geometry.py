"""Other places of pixels and boxes, other sizes of images, other boxes and classes."""

from dataclasses import dataclass
from typing import Annotated, Literal

from stillbox.experiment.schema.augmentations.base import Augmentation
from stillbox.experiment.schema.ranges import *

JitterMode = Literal[
    "default",
    "expand",
    "shrink",
    "expand_symmetric",
    "shrink_symmetric",
    "expand_symmetric_xy",
    "shrink_symmetric_xy",
]


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

    min_height: Side | None = None
    """Least height of the canvas, in pixels; the image's own where that is more, or for null."""
    min_width: Side | None = None
    """Least width of the canvas, likewise."""
    max_height: Side | None = None
    """Greatest height of the canvas (excluded), in pixels; null: twice the image's."""
    max_width: Side | None = None
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


@dataclass(frozen=True, kw_only=True)
class RandomImageScale(Augmentation, kind="random_image_scale"):
    """Scales the image by a random factor, its aspect ratio kept."""

    min_ratio: Positive = 0.5
    """Least factor."""
    max_ratio: Real = 2.0
    """Greatest factor."""


@dataclass(frozen=True, kw_only=True)
class RandomResizeMethod(Augmentation, kind="random_resize_method"):
    """Stretches the image to one size with a method of interpolation drawn from four."""

    height: Side = 300
    """Rows of the result."""
    width: Side = 300
    """Columns of the result."""


@dataclass(frozen=True, kw_only=True)
class ResizeImage(Augmentation, kind="resize_image"):
    """Stretches the image to one size, always."""

    height: Side = 300
    """Rows of the result."""
    width: Side = 300
    """Columns of the result."""
    method: Literal["bilinear", "nearest", "bicubic", "area"] = "bilinear"
    """Interpolation, in TF1's form without half-pixel centres."""


@dataclass(frozen=True, kw_only=True)
class RandomDownscaleToTargetPixels(Augmentation, kind="random_downscale_to_target_pixels"):
    """Shrinks an image that has more pixels than a random number."""

    min_target_pixels: PositiveInt = 300_000
    """Least number of pixels."""
    max_target_pixels: PositiveInt = 800_000
    """Greatest number of pixels (excluded)."""
    random_coef: Fraction = 0.0
    """Probability of leaving the image as it is."""


@dataclass(frozen=True, kw_only=True)
class RandomJitterBoxes(Augmentation, kind="random_jitter_boxes"):
    """Moves the edges of every box by random shares of its size; clipped to the image."""

    ratio: Fraction = 0.05
    """Greatest share by which an edge's distance from the centre grows or shrinks."""
    mode: JitterMode = "default"
    """`default` moves every edge on its own, both ways; `expand` and `shrink` only one way;
    `symmetric` leaves the centre where it is; `symmetric_xy` uses one share for both axes."""


@dataclass(frozen=True, kw_only=True)
class DropLabelProbabilistically(Augmentation, kind="drop_label_probabilistically"):
    """Drops boxes of one class at random."""

    label: Classes = 1
    """Label map id of the class."""
    probability: Fraction = 1.0
    """How likely each of its boxes is dropped."""


@dataclass(frozen=True, kw_only=True)
class RemapLabels(Augmentation, kind="remap_labels"):
    """Makes one class of several."""

    original_labels: Annotated[tuple[Classes, ...], PerClass] = ()
    """Label map ids of the classes that change."""
    new_label: Classes = 1
    """Label map id that they become."""
