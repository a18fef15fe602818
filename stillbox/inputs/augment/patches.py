"""Patches that cover or disturb a part of the image (fact sheet 1.2 and 1.4)."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment.schema import RandomBlackPatches, RandomPatchGaussian
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.colors import as_float
from stillbox.inputs.augment.draws import is_left_alone, uniform, whole_number
from stillbox.inputs.sample import Sample


@implements(RandomBlackPatches)
def random_black_patches(sample: Sample, settings: RandomBlackPatches, rng: Generator) -> Sample:
    """Covers the image with up to `max_patches` black squares, each with its probability.

    The first row is uniform between 0 and `(1 - size_ratio)` of the height, the first column
    likewise, both cut to whole pixels. Boxes under a patch stay.
    """
    height, width = sample.image.shape[:2]
    side = int(min(height, width) * settings.size_ratio)
    draws = rng.random((settings.max_patches, 3))
    image = sample.image.copy()
    for chance, y_share, x_share in draws:
        if chance < settings.probability:
            y = int(y_share * (1 - settings.size_ratio) * height)
            x = int(x_share * (1 - settings.size_ratio) * width)
            image[y : y + side, x : x + side] = 0
    return replace(sample, image=image)


@implements(RandomPatchGaussian)
def random_patch_gaussian(sample: Sample, settings: RandomPatchGaussian, rng: Generator) -> Sample:
    """Adds noise to a square around a random pixel and clips it to 0..255 (arXiv:1906.02611).

    The square may stick out of the image; where its side is even, it begins one pixel earlier.
    With probability `random_coef` the image stays as it is.
    """
    if is_left_alone(rng, settings.random_coef):
        return sample
    height, width = sample.image.shape[:2]
    side = whole_number(rng, settings.min_patch_size, settings.max_patch_size)
    stddev = uniform(rng, settings.min_stddev, settings.max_stddev)
    y, x = (whole_number(rng, 0, length) - side // 2 for length in (height, width))
    image = as_float(sample.image)
    patch = image[max(y, 0) : y + side, max(x, 0) : x + side]
    noise = rng.standard_normal(patch.shape, np.float32)
    np.clip(patch + noise * np.float32(255 * stddev), 0, 255, out=patch)
    return replace(sample, image=image)
