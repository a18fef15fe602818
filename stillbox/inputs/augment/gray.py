"""Colour pictures in gray (fact sheet 1.4), in three channels: all detectors here take RGB."""

from dataclasses import replace
from typing import cast

import cv2
import numpy as np
from numpy.random import Generator

from stillbox.experiment.schema import RandomRgbToGray, RgbToGray
from stillbox.experiment.variants import implements
from stillbox.inputs.sample import Pixels, Sample

# The weights of tf.image.rgb_to_grayscale, once for each channel of the result.
_WEIGHTS = np.tile(np.array([0.2989, 0.5870, 0.1140], np.float32), (3, 1))


@implements(RandomRgbToGray)
def random_rgb_to_gray(sample: Sample, settings: RandomRgbToGray, rng: Generator) -> Sample:
    """Makes the image gray with the given probability; 0 never does."""
    if rng.random() >= settings.probability:
        return sample
    return replace(sample, image=_gray(sample.image))


@implements(RgbToGray)
def rgb_to_gray(sample: Sample, settings: RgbToGray, rng: Generator) -> Sample:
    """Makes every image gray. Nothing is random. The original leaves one channel."""
    return replace(sample, image=_gray(sample.image))


def _gray(image: Pixels) -> Pixels:
    return cast(Pixels, cv2.transform(image.astype(np.float32), _WEIGHTS))
