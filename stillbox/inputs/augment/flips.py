"""Mirroring and turning (fact sheet 1.4)."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.experiment.schema import RandomHorizontalFlip, RandomRotation90, RandomVerticalFlip
from stillbox.experiment.variants import implements
from stillbox.inputs.sample import Pixels, Sample

Floats = NDArray[np.float32]


@implements(RandomHorizontalFlip)
def random_horizontal_flip(
    sample: Sample, settings: RandomHorizontalFlip, rng: Generator
) -> Sample:
    """Mirrors image and boxes with the given probability; 0 never does, 1 always."""
    return _sometimes(sample, settings.probability, rng, lambda p: cv2.flip(p, 1), flip_boxes)


@implements(RandomVerticalFlip)
def random_vertical_flip(sample: Sample, settings: RandomVerticalFlip, rng: Generator) -> Sample:
    """Turns image and boxes upside down with the given probability."""
    return _sometimes(sample, settings.probability, rng, lambda p: cv2.flip(p, 0), _upside_down)


@implements(RandomRotation90)
def random_rotation90(sample: Sample, settings: RandomRotation90, rng: Generator) -> Sample:
    """Turns image and boxes by 90 degrees against the clock with the given probability."""
    return _sometimes(
        sample,
        settings.probability,
        rng,
        lambda pixels: cv2.rotate(pixels, cv2.ROTATE_90_COUNTERCLOCKWISE),
        _turn_boxes,
    )


def flip_boxes(boxes: Floats) -> Floats:
    """Mirrors boxes `[N, 4]`: `(ymin, xmin, ymax, xmax)` to `(ymin, 1 - xmax, ymax, 1 - xmin)`."""
    ymin, xmin, ymax, xmax = boxes.T
    return np.stack([ymin, 1 - xmax, ymax, 1 - xmin], axis=1)


def _upside_down(boxes: Floats) -> Floats:
    ymin, xmin, ymax, xmax = boxes.T
    return np.stack([1 - ymax, xmin, 1 - ymin, xmax], axis=1)


def _turn_boxes(boxes: Floats) -> Floats:
    # The right edge becomes the top one.
    ymin, xmin, ymax, xmax = boxes.T
    return np.stack([1 - xmax, ymin, 1 - xmin, ymax], axis=1)


def _sometimes(
    sample: Sample,
    probability: float,
    rng: Generator,
    move_pixels: Callable[[Pixels], object],
    move_boxes: Callable[[Floats], Floats],
) -> Sample:
    if rng.random() >= probability:
        return sample
    # A view with a negative stride would be free, but OpenCV takes none later on.
    image = cast(Pixels, move_pixels(sample.image))
    return replace(sample, image=image, boxes=move_boxes(sample.boxes))
