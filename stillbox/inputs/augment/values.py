"""Functions of pixel values, with float32 results.

`normalize_image`, `subtract_channel_mean` and `adjust_gamma` do not clip, as in the original, and
are deterministic.
"""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.colors import as_float
from stillbox.inputs.sample import Sample


@implements(schema.RandomPixelValueScale)
def random_pixel_value_scale(
    sample: Sample, config: schema.RandomPixelValueScale, rng: Generator
) -> Sample:
    """Multiplies every value of every channel by a factor of its own; clips to 0..255."""
    low, high = config.min_factor, config.max_factor
    image = rng.random(sample.image.shape, np.float32)
    image *= np.float32(high - low)
    image += np.float32(low)
    image *= sample.image
    return replace(sample, image=np.clip(image, 0, 255, out=image))


@implements(schema.AdjustGamma)
def adjust_gamma(sample: Sample, config: schema.AdjustGamma, rng: Generator) -> Sample:
    """Returns `255 * gain * (value / 255) ** gamma`; negative values count as 0."""
    shares = as_float(sample.image)
    np.maximum(shares, 0, out=shares)
    shares /= 255
    shares **= np.float32(config.gamma)
    shares *= np.float32(255 * config.gain)
    return replace(sample, image=shares)


@implements(schema.NormalizeImage)
def normalize_image(sample: Sample, config: schema.NormalizeImage, rng: Generator) -> Sample:
    """Maps `original_min .. original_max` linearly to `target_min .. target_max`."""
    source = config.original_max - config.original_min
    scale = (config.target_max - config.target_min) / source
    image = as_float(sample.image)
    image -= np.float32(config.original_min)
    image *= np.float32(scale)
    image += np.float32(config.target_min)
    return replace(sample, image=image)


@implements(schema.SubtractChannelMean)
def subtract_channel_mean(
    sample: Sample, config: schema.SubtractChannelMean, rng: Generator
) -> Sample:
    """Subtracts one number from each channel."""
    image = as_float(sample.image)
    rows = image.reshape(image.shape[0], -1)
    rows -= np.tile(np.array(config.means, np.float32), image.shape[1])
    return replace(sample, image=image)
