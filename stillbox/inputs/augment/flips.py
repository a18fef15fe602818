"""Flips and rotations by 90 degrees."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import cv2
import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.sample import Floats, Pixels, Sample, StoredSample


@implements(schema.RandomHorizontalFlip)
def random_horizontal_flip(
    sample: Sample, config: schema.RandomHorizontalFlip, rng: Generator
) -> Sample:
    """Mirrors image and boxes with the given probability; 0 never does, 1 always."""
    if isinstance(sample, StoredSample):
        if rng.random() >= config.probability:
            return sample
        return replace(sample, stored=sample.stored.mirror(), boxes=flip_boxes(sample.boxes))
    return _with_probability(sample, config.probability, rng, lambda p: cv2.flip(p, 1), flip_boxes)


@implements(schema.RandomVerticalFlip)
def random_vertical_flip(
    sample: Sample, config: schema.RandomVerticalFlip, rng: Generator
) -> Sample:
    """Turns image and boxes upside down with the given probability."""
    return _with_probability(
        sample, config.probability, rng, lambda p: cv2.flip(p, 0), _flip_boxes_vertically
    )


@implements(schema.RandomRotation90)
def random_rotation90(sample: Sample, config: schema.RandomRotation90, rng: Generator) -> Sample:
    """Turns image and boxes by 90 degrees against the clock with the given probability."""
    return _with_probability(
        sample,
        config.probability,
        rng,
        lambda pixels: cv2.rotate(pixels, cv2.ROTATE_90_COUNTERCLOCKWISE),
        _rotate_boxes,
    )


def flip_boxes(boxes: Floats) -> Floats:
    """Mirrors boxes `[N, 4]`: `(ymin, xmin, ymax, xmax)` to `(ymin, 1 - xmax, ymax, 1 - xmin)`."""
    ymin, xmin, ymax, xmax = boxes.T
    return np.stack([ymin, 1 - xmax, ymax, 1 - xmin], axis=1)


def _flip_boxes_vertically(boxes: Floats) -> Floats:
    ymin, xmin, ymax, xmax = boxes.T
    return np.stack([1 - ymax, xmin, 1 - ymin, xmax], axis=1)


def _rotate_boxes(boxes: Floats) -> Floats:
    # The right edge becomes the top one.
    ymin, xmin, ymax, xmax = boxes.T
    return np.stack([1 - xmax, ymin, 1 - xmin, ymax], axis=1)


def _with_probability(
    sample: Sample,
    probability: float,
    rng: Generator,
    move_pixels: Callable[[Pixels], object],
    move_boxes: Callable[[Floats], Floats],
) -> Sample:
    if rng.random() >= probability:
        return sample
    # Not a view with a negative stride, which OpenCV does not accept later.
    image = cast(Pixels, move_pixels(sample.image))
    return replace(sample, image=image, boxes=move_boxes(sample.boxes))
