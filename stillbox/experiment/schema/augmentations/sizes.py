"""Other sizes of the same picture; normalised boxes stay as they are."""

from dataclasses import dataclass
from typing import Literal

from stillbox.experiment.schema.augmentations.base import Augmentation
from stillbox.experiment.schema.ranges import *


@dataclass(frozen=True, kw_only=True)
class RandomImageScale(Augmentation, kind="random_image_scale"):
    """Scales the image by a random factor, its aspect ratio kept."""

    min_ratio: Positive = 0.5
    """Least factor."""
    max_ratio: float = 2.0
    """Greatest factor."""


@dataclass(frozen=True, kw_only=True)
class RandomResizeMethod(Augmentation, kind="random_resize_method"):
    """Stretches the image to one size with a method of interpolation drawn from four."""

    height: PositiveInt = 300
    """Rows of the result."""
    width: PositiveInt = 300
    """Columns of the result."""


@dataclass(frozen=True, kw_only=True)
class ResizeImage(Augmentation, kind="resize_image"):
    """Stretches the image to one size, always."""

    height: PositiveInt = 300
    """Rows of the result."""
    width: PositiveInt = 300
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
