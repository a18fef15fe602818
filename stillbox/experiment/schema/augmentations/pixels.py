"""Other pixels in the same places: colours (in float32 from here on), learnt policies, damage."""

from dataclasses import dataclass
from typing import Annotated, Literal

from stillbox.experiment.schema.augmentations.base import Augmentation
from stillbox.experiment.schema.ranges import *


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

    means: tuple[Real, ...] = (0.0, 0.0, 0.0)
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
