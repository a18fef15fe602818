"""Damage to the picture: patches, noise, compression."""

from dataclasses import dataclass

from stillbox.experiment.schema.augmentations.base import Augmentation
from stillbox.experiment.schema.ranges import *


@dataclass(frozen=True, kw_only=True)
class RandomBlackPatches(Augmentation, kind="random_black_patches"):
    """Covers the image with black squares."""

    max_patches: NonNegativeInt = 10
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

    min_patch_size: PositiveInt = 1
    """Least side of the patch, in pixels."""
    max_patch_size: int = 250
    """Greatest side of the patch (excluded), in pixels."""
    min_stddev: NonNegative = 0.0
    """Least standard deviation of the noise, as a share of 255."""
    max_stddev: float = 1.0
    """Greatest standard deviation of the noise, as a share of 255."""
    random_coef: Fraction = 0.0
    """Probability of leaving the image as it is."""
