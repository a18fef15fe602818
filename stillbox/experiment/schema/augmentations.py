"""Changes of a training image and its boxes, before the image is resized.

This module has changes of places, sizes, boxes and classes, and of pixels: colours (in
float32 from here on), learnt policies, damage. `crop_augmentations` has the random windows.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from stillbox.experiment.schema.crop_augmentations import Augmentation
from stillbox.experiment.schema.ranges import (
    Classes,
    ColorValue,
    Fraction,
    NonNegative,
    NonNegativeInt,
    PadColor,
    Percent,
    PerClass,
    Positive,
    PositiveInt,
    Range,
    Real,
    Rgb,
    Side,
)

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
    pad_color: Annotated[tuple[ColorValue, ...], PadColor] = ()
    """Red, green and blue of the canvas, in 0..255; empty: the mean colour of the image."""


@dataclass(frozen=True, kw_only=True)
class RandomAbsolutePadImage(Augmentation, kind="random_absolute_pad_image"):
    """Adds less than so many rows and columns, at random on all sides."""

    max_height_padding: NonNegativeInt = 0
    """Rows that are added at most (excluded)."""
    max_width_padding: NonNegativeInt = 0
    """Columns that are added at most (excluded)."""
    pad_color: Annotated[tuple[ColorValue, ...], PadColor] = ()
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


@dataclass(frozen=True, kw_only=True)
class RandomAdjustBrightness(Augmentation, kind="random_adjust_brightness"):
    """Adds one random number to all values."""

    max_delta: Fraction = 0.2
    """Greatest number that is added or taken away, as a share of 255."""
    clip: bool = True
    """Clip to 0..255; false leaves values beyond it as they are, as the MLPerf recipe does."""


@dataclass(frozen=True, kw_only=True)
class RandomAdjustContrast(Augmentation, kind="random_adjust_contrast"):
    """Moves all values away from their channel's mean or towards it."""

    min_factor: NonNegative = 0.8
    """Least factor of the distance from the mean."""
    max_factor: Real = 1.25
    """Greatest factor."""
    clip: bool = True
    """Clip to 0..255; false leaves values beyond it as they are, as the MLPerf recipe does."""


@dataclass(frozen=True, kw_only=True)
class RandomAdjustHue(Augmentation, kind="random_adjust_hue"):
    """Turns all hues by one random angle."""

    max_turn: Annotated[float, Range(0, 0.5)] = 0.02
    """Greatest angle in both directions, in full turns."""
    clip: bool = True
    """Clip to 0..255; false leaves values beyond it as they are, as the MLPerf recipe does."""


@dataclass(frozen=True, kw_only=True)
class RandomAdjustSaturation(Augmentation, kind="random_adjust_saturation"):
    """Multiplies all saturations by one random factor; they end at 1."""

    min_factor: NonNegative = 0.8
    """Least factor."""
    max_factor: Real = 1.25
    """Greatest factor."""
    clip: bool = True
    """Clip to 0..255; false leaves values beyond it as they are, as the MLPerf recipe does."""


@dataclass(frozen=True, kw_only=True)
class RandomDistortColor(Augmentation, kind="random_distort_color"):
    """Brightness (32/255), saturation (0.5 to 1.5), hue (0.2), contrast (0.5 to 1.5) in turn."""

    ordering: Annotated[int, Range(0, 1)] = 0
    """0: brightness, saturation, hue, contrast; 1: brightness, contrast, saturation, hue."""


@dataclass(frozen=True, kw_only=True)
class RandomPixelValueScale(Augmentation, kind="random_pixel_value_scale"):
    """Multiplies every value by a random factor of its own; clipped to 0..255."""

    min_factor: NonNegative = 0.9
    """Least factor."""
    max_factor: Real = 1.1
    """Greatest factor."""


@dataclass(frozen=True, kw_only=True)
class RandomRgbToGray(Augmentation, kind="random_rgb_to_gray"):
    """Makes the image gray, in three equal channels."""

    probability: Fraction = 0.1
    """How often."""


@dataclass(frozen=True, kw_only=True)
class RgbToGray(Augmentation, kind="rgb_to_gray"):
    """Makes every image gray, in three equal channels (the original leaves one)."""


@dataclass(frozen=True, kw_only=True)
class AdjustGamma(Augmentation, kind="adjust_gamma"):
    """`gain * value ** gamma` on values in 0..1; not clipped."""

    gamma: NonNegative = 1.0
    """The exponent; below 1 makes dark parts lighter."""
    gain: NonNegative = 1.0
    """The factor."""


@dataclass(frozen=True, kw_only=True)
class NormalizeImage(Augmentation, kind="normalize_image"):
    """Maps one range of values linearly to another; not clipped."""

    original_min: Real = 0.0
    """What becomes `target_min`."""
    original_max: Real = 255.0
    """What becomes `target_max`."""
    target_min: Real = 0.0
    """See `original_min`."""
    target_max: Real = 1.0
    """See `original_max`."""


@dataclass(frozen=True, kw_only=True)
class SubtractChannelMean(Augmentation, kind="subtract_channel_mean"):
    """Subtracts a number from each channel; not clipped."""

    means: Annotated[tuple[Real, ...], Rgb] = (0.0, 0.0, 0.0)
    """Red, green and blue."""


@dataclass(frozen=True, kw_only=True)
class AutoAugment(Augmentation, kind="autoaugment"):
    """One row of a learnt policy, drawn for each image: operations on pixels and boxes.

    Detection's AutoAugment (arXiv:1906.11172). Its shifts and patches are in pixels, so it belongs
    before whatever changes the image's size; it hands on whole numbers in 0..255.
    """

    policy: Literal["v0", "v1", "v2", "v3", "test"] = "v0"
    """Which policy: `v0` is the paper's with 5 rows, `v1` has 20, `v2` and `v3` have 15 each, and
    `test` does the same to every image."""
    contrast: Literal["original", "mean"] = "original"
    """What contrast is about: `original` is the published code's gray, a pixel count divided by
    256 and cut to 255, thus white for all but tiny images; `mean` is the image's mean gray. Only
    `v2` and `v3` ever change contrast."""


@dataclass(frozen=True, kw_only=True)
class RandomBlackPatches(Augmentation, kind="random_black_patches"):
    """Covers the image with black squares."""

    max_patches: Annotated[int, Range(0, 10_000)] = 10
    """How many squares there may be."""
    probability: Fraction = 0.5
    """How likely each of them is."""
    size_ratio: Fraction = 0.1
    """Side of a square, relative to the image's short side."""


@dataclass(frozen=True, kw_only=True)
class RandomJpegQuality(Augmentation, kind="random_jpeg_quality"):
    """Compresses the image as JPEG with a random quality."""

    min_quality: Percent = 0
    """Least quality, 0 to 100."""
    max_quality: Percent = 100
    """Greatest quality (excluded), 0 to 100."""
    random_coef: Fraction = 0.0
    """Probability of leaving the image as it is."""


@dataclass(frozen=True, kw_only=True)
class RandomPatchGaussian(Augmentation, kind="random_patch_gaussian"):
    """Adds Gaussian noise to a square patch (arXiv:1906.02611); clipped to 0..255."""

    min_patch_size: Side = 1
    """Least side of the patch, in pixels."""
    max_patch_size: Side = 250
    """Greatest side of the patch (excluded), in pixels."""
    min_stddev: NonNegative = 0.0
    """Least standard deviation of the noise, as a share of 255."""
    max_stddev: Real = 1.0
    """Greatest standard deviation of the noise, as a share of 255."""
    random_coef: Fraction = 0.0
    """Probability of leaving the image as it is."""
