"""Brightness, contrast, hue and saturation (fact sheet 1.4).

Each takes values in 0..255, works on them in float32, clips to 0..255 and hands float32 on.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.experiment.schema import (
    RandomAdjustBrightness,
    RandomAdjustContrast,
    RandomAdjustHue,
    RandomAdjustSaturation,
    RandomDistortColor,
)
from stillbox.inputs.augment.draws import uniform
from stillbox.inputs.augment.frames import mean_color
from stillbox.inputs.sample import Pixels, Sample

Floats = NDArray[np.float32]

_BRIGHTNESS = RandomAdjustBrightness(max_delta=32 / 255)
_SATURATION = RandomAdjustSaturation(min_factor=0.5, max_factor=1.5)
_HUE = RandomAdjustHue(max_turn=0.2)
_CONTRAST = RandomAdjustContrast(min_factor=0.5, max_factor=1.5)


def random_adjust_brightness(
    sample: Sample, settings: RandomAdjustBrightness, rng: Generator
) -> Sample:
    """Adds one number, uniform in `-max_delta .. max_delta` times 255."""
    delta = uniform(rng, -settings.max_delta, settings.max_delta)
    return replace(sample, image=_clip(as_float(sample.image) + np.float32(255 * delta)))


def random_adjust_contrast(
    sample: Sample, settings: RandomAdjustContrast, rng: Generator
) -> Sample:
    """Multiplies the distance of every value from the mean of its channel by one factor."""
    factor = np.float32(uniform(rng, settings.min_factor, settings.max_factor))
    offset = mean_color(sample.image) * (1 - factor)
    # Whole rows at a time: numpy is slow at adding three numbers over and over.
    image = as_float(sample.image)
    image *= factor
    rows = image.reshape(image.shape[0], -1)
    rows += np.tile(offset, image.shape[1])
    return replace(sample, image=_clip(image))


def random_adjust_hue(sample: Sample, settings: RandomAdjustHue, rng: Generator) -> Sample:
    """Turns all hues by one angle, uniform in `-max_turn .. max_turn` of a full turn."""
    degrees = np.float32(360 * uniform(rng, -settings.max_turn, settings.max_turn))

    def turn(hsv: Floats) -> None:
        hue = hsv[..., 0]
        hue += degrees
        # Not the modulo, which takes several times as long: one turn is all there can be.
        hue[hue < 0] += 360
        hue[hue >= 360] -= 360

    return replace(sample, image=_in_hsv(sample.image, turn))


def random_adjust_saturation(
    sample: Sample, settings: RandomAdjustSaturation, rng: Generator
) -> Sample:
    """Multiplies all saturations by one factor; they end at 1."""
    factor = np.float32(uniform(rng, settings.min_factor, settings.max_factor))

    def scale(hsv: Floats) -> None:
        saturation = hsv[..., 1]
        saturation *= factor
        np.clip(saturation, 0, 1, out=saturation)

    return replace(sample, image=_in_hsv(sample.image, scale))


def random_distort_color(sample: Sample, settings: RandomDistortColor, rng: Generator) -> Sample:
    """Applies all four in one of two orders."""
    sample = random_adjust_brightness(sample, _BRIGHTNESS, rng)
    if settings.ordering == 1:
        sample = random_adjust_contrast(sample, _CONTRAST, rng)
    sample = random_adjust_saturation(sample, _SATURATION, rng)
    sample = random_adjust_hue(sample, _HUE, rng)
    if settings.ordering == 0:
        sample = random_adjust_contrast(sample, _CONTRAST, rng)
    return sample


def as_float(image: Pixels) -> Floats:
    """Returns a copy of the pixels that may be written to."""
    return image.astype(np.float32)


def _clip(image: Floats) -> Floats:
    return np.clip(image, 0, 255, out=image)


def _in_hsv(image: Pixels, change: Callable[[Floats], None]) -> Floats:
    """Changes hue (0..360), saturation (0..1) and value (0..1) in place and returns the pixels."""
    pixels = as_float(image)
    pixels /= 255
    hsv = cast(Floats, cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV))
    change(hsv)
    result = cast(Floats, cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB))
    result *= 255
    return _clip(result)
