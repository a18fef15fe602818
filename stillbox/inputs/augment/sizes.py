"""Other sizes of the same picture (fact sheet 1.4). Boxes are normalised and stay as they are.

All of them interpolate as TF1 does and hand float32 on.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment.schema import (
    RandomDownscaleToTargetPixels,
    RandomImageScale,
    RandomResizeMethod,
    ResizeImage,
)
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.draws import is_left_alone, uniform, whole_number
from stillbox.inputs.interpolation import METHODS, Floats
from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Pixels, Sample

# In the order of TF1's ResizeMethod.
_METHODS = ("bilinear", "nearest", "bicubic", "area")


@implements(RandomImageScale)
def random_image_scale(sample: Sample, settings: RandomImageScale, rng: Generator) -> Sample:
    """Scales by a random factor; sides are cut to whole pixels, corner pixels coincide."""
    scale = uniform(rng, settings.min_ratio, settings.max_ratio)
    height, width = (max(int(side * scale), 1) for side in sample.image.shape[:2])
    return replace(sample, image=resized(sample.image, (height, width), align_corners=True))


@implements(RandomResizeMethod)
def random_resize_method(sample: Sample, settings: RandomResizeMethod, rng: Generator) -> Sample:
    """Stretches to one size with bilinear, nearest, bicubic or area, each as likely."""
    method = _METHODS[whole_number(rng, 0, len(_METHODS))]
    size = settings.height, settings.width
    return replace(sample, image=resized(sample.image, size, method))


@implements(ResizeImage)
def resize_image(sample: Sample, settings: ResizeImage, rng: Generator) -> Sample:
    """Stretches to one size. Nothing is random."""
    size = settings.height, settings.width
    return replace(sample, image=resized(sample.image, size, settings.method))


@implements(RandomDownscaleToTargetPixels)
def random_downscale_to_target_pixels(
    sample: Sample, settings: RandomDownscaleToTargetPixels, rng: Generator
) -> Sample:
    """Shrinks an image with more pixels than a random number to about that number.

    Sides are cut to whole pixels. Smaller images, and a share of `random_coef`, stay as they are.
    """
    if is_left_alone(rng, settings.random_coef):
        return sample
    target = whole_number(rng, settings.min_target_pixels, settings.max_target_pixels)
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
