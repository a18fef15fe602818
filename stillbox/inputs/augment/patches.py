"""Patches that cover or disturb a part of the image."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.colors import as_float
from stillbox.inputs.augment.draws import is_skipped, random_integer, uniform
from stillbox.inputs.sample import Sample


@implements(schema.RandomBlackPatches)
def random_black_patches(
    sample: Sample, config: schema.RandomBlackPatches, rng: Generator
) -> Sample:
    """Covers the image with up to `max_patches` black squares, each with its probability.

    The first row is uniform between 0 and `(1 - size_ratio)` of the height, the first column
    likewise, both cut to whole pixels. Boxes under a patch stay.
    """
    height, width = sample.image.shape[:2]
    side = int(min(height, width) * config.size_ratio)
    draws = rng.random((config.max_patches, 3))
    image = sample.image.copy()
    for chance, y_share, x_share in draws:
        if chance < config.probability:
            y = int(y_share * (1 - config.size_ratio) * height)
            x = int(x_share * (1 - config.size_ratio) * width)
            image[y : y + side, x : x + side] = 0
    return replace(sample, image=image)


@implements(schema.RandomPatchGaussian)
def random_patch_gaussian(
    sample: Sample, config: schema.RandomPatchGaussian, rng: Generator
) -> Sample:
    """Adds noise to a square around a random pixel and clips it to 0..255 (arXiv:1906.02611).

    The square may stick out of the image; where its side is even, it begins one pixel earlier.
    With probability `random_coef` the image stays as it is.
    """
    if is_skipped(rng, config.random_coef):
        return sample
    height, width = sample.image.shape[:2]
    side = random_integer(rng, config.min_patch_size, config.max_patch_size)
    stddev = uniform(rng, config.min_stddev, config.max_stddev)
    y, x = (random_integer(rng, 0, length) - side // 2 for length in (height, width))
    image = as_float(sample.image)
    patch = image[max(y, 0) : y + side, max(x, 0) : x + side]
    noise = rng.standard_normal(patch.shape, np.float32)
    np.clip(patch + noise * np.float32(255 * stddev), 0, 255, out=patch)
    return replace(sample, image=image)
