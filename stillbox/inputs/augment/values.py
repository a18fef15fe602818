"""Values through a function (fact sheet 1.2 and 1.4); float32 is handed on.

`normalize_image`, `subtract_channel_mean` and `adjust_gamma` do not clip, as in the original, and
nothing about them is random.
"""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment.schema import (
    AdjustGamma,
    NormalizeImage,
    RandomPixelValueScale,
    SubtractChannelMean,
)
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.colors import as_float
from stillbox.inputs.sample import Sample


@implements(RandomPixelValueScale)
def random_pixel_value_scale(
    sample: Sample, settings: RandomPixelValueScale, rng: Generator
) -> Sample:
    """Multiplies every value of every channel by a factor of its own; clips to 0..255."""
    low, high = settings.min_factor, settings.max_factor
    image = rng.random(sample.image.shape, np.float32)
    image *= np.float32(high - low)
    image += np.float32(low)
    image *= sample.image
    return replace(sample, image=np.clip(image, 0, 255, out=image))


@implements(AdjustGamma)
def adjust_gamma(sample: Sample, settings: AdjustGamma, rng: Generator) -> Sample:
    """`255 * gain * (value / 255) ** gamma`; negative values, which have no power, count as 0."""
    shares = as_float(sample.image)
    np.maximum(shares, 0, out=shares)
    shares /= 255
    shares **= np.float32(settings.gamma)
    shares *= np.float32(255 * settings.gain)
    return replace(sample, image=shares)


@implements(NormalizeImage)
def normalize_image(sample: Sample, settings: NormalizeImage, rng: Generator) -> Sample:
    """Maps `original_min .. original_max` linearly to `target_min .. target_max`."""
    source = settings.original_max - settings.original_min
    scale = (settings.target_max - settings.target_min) / source
    image = as_float(sample.image)
    image -= np.float32(settings.original_min)
    image *= np.float32(scale)
    image += np.float32(settings.target_min)
    return replace(sample, image=image)


@implements(SubtractChannelMean)
def subtract_channel_mean(
    sample: Sample,
    settings: SubtractChannelMean,
    rng: Generator,
) -> Sample:
    """Subtracts a number of its own from each channel."""
    image = as_float(sample.image)
    rows = image.reshape(image.shape[0], -1)
    rows -= np.tile(np.array(settings.means, np.float32), image.shape[1])
    return replace(sample, image=image)
