"""Small samples, and what one operation makes of them."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.loader import sample_generator
from stillbox.inputs.sample import Sample
from tests.inputs.helpers import picture

BOXES = ((0.25, 0.25, 0.75, 0.5), (0.5, 0.5, 1.0, 1.0))


def sample(boxes=BOXES, size=(40, 80), dtype=np.uint8) -> Sample:
    """Returns a picture with boxes of the class ids 1, 2, 3 ... and weights from 0 to 1."""
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    count = len(boxes)
    return Sample(
        image=picture(*size).astype(dtype),
        boxes=boxes,
        class_ids=np.arange(1, count + 1, dtype=np.int32),
        weights=np.linspace(0, 1, count, dtype=np.float32),
    )


def of_pixels(*rows, dtype=np.uint8) -> Sample:
    """Returns a sample without boxes; a number is a gray pixel, three are a colour."""
    pixels = [[[p] * 3 if np.isscalar(p) else p for p in row] for row in rows]
    return replace(sample(boxes=()), image=np.array(pixels, dtype))


def rng(number=0):
    return sample_generator(0, 0, number)


class Alone:
    """A set of one record, which is combined with itself."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def draw(self, rng: Generator, *, with_boxes: bool = False) -> Sample | None:
        return None if with_boxes and not len(self.sample.boxes) else self.sample


def augmented(settings: schema.Augmentation, before: Sample, number: int = 0) -> Sample:
    return apply_augmentations([settings], before, rng(number), Alone(before))


def many(settings: schema.Augmentation, before: Sample, count: int = 300) -> list[Sample]:
    """Returns what different generators make of the same sample."""
    return [augmented(settings, before, number) for number in range(count)]
