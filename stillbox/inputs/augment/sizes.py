"""Resizing of the image; normalised boxes stay. All interpolate as TF1 and return float32."""

import math
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.draws import is_skipped, random_integer, uniform
from stillbox.inputs.interpolation import METHODS
from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Floats, Pixels, Sample

# In the order of TF1's ResizeMethod.
_METHODS = ("bilinear", "nearest", "bicubic", "area")


@implements(schema.RandomImageScale)
def random_image_scale(sample: Sample, config: schema.RandomImageScale, rng: Generator) -> Sample:
    """Scales by a random factor; sides are cut to whole pixels, corner pixels coincide."""
    scale = uniform(rng, config.min_ratio, config.max_ratio)
    height, width = (max(int(side * scale), 1) for side in sample.image.shape[:2])
    return replace(sample, image=resized(sample.image, (height, width), align_corners=True))


@implements(schema.RandomResizeMethod)
def random_resize_method(
    sample: Sample, config: schema.RandomResizeMethod, rng: Generator
) -> Sample:
    """Stretches to one size with bilinear, nearest, bicubic or area, each as likely."""
    method = _METHODS[random_integer(rng, 0, len(_METHODS))]
    size = config.height, config.width
    return replace(sample, image=resized(sample.image, size, method))


@implements(schema.ResizeImage)
def resize_image(sample: Sample, config: schema.ResizeImage, rng: Generator) -> Sample:
    """Stretches to one size. Nothing is random."""
    size = config.height, config.width
    return replace(sample, image=resized(sample.image, size, config.method))


@implements(schema.RandomDownscaleToTargetPixels)
def random_downscale_to_target_pixels(
    sample: Sample, config: schema.RandomDownscaleToTargetPixels, rng: Generator
) -> Sample:
    """Shrinks an image with more pixels than a random number to about that number.

    Sides are cut to whole pixels. Smaller images, and a share of `random_coef`, stay as they are.
    """
    if is_skipped(rng, config.random_coef):
        return sample
    target = random_integer(rng, config.min_target_pixels, config.max_target_pixels)
    height, width = sample.image.shape[:2]
    if height * width <= target:
        return sample
    scale = math.sqrt(target / (height * width))
    size = max(int(height * scale), 1), max(int(width * scale), 1)
    return replace(sample, image=resized(sample.image, size))


def resized(
    image: Pixels, size: Size, method: str = "bilinear", *, align_corners: bool = False
) -> Floats:
    """Returns the image at another size, `[*size, 3]`."""
    out = np.empty((*size, 3), np.float32)
    METHODS[method](image, out, align_corners=align_corners)
    return out
