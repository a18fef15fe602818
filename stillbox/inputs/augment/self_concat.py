"""Concatenation of an image with itself."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.sample import Sample


@implements(schema.RandomSelfConcatImage)
def random_self_concat_image(
    sample: Sample, config: schema.RandomSelfConcatImage, rng: Generator
) -> Sample:
    """Doubles the image downwards, then sideways, each with its own probability.

    The boxes of the copy follow those of the original in the list.
    """
    below = rng.random() < config.vertical_probability
    beside = rng.random() < config.horizontal_probability
    for axis, doubled in ((0, below), (1, beside)):
        if doubled:
            sample = _double(sample, axis)
    return sample


def _double(sample: Sample, axis: int) -> Sample:
    shrink = np.ones(4, np.float32)
    shrink[axis::2] = 0.5
    first = sample.boxes * shrink
    twice = sample.select(np.tile(np.arange(len(sample.boxes)), 2))
    return replace(
        twice,
        image=np.concatenate([sample.image, sample.image], axis=axis),
        boxes=np.concatenate([first, first + (1 - shrink)]),
    )
