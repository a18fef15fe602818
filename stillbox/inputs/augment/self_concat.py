"""An image below or beside itself (fact sheet 1.2)."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment.schema import RandomSelfConcatImage
from stillbox.experiment.variants import implements
from stillbox.inputs.sample import Sample


@implements(RandomSelfConcatImage)
def random_self_concat_image(
    sample: Sample, settings: RandomSelfConcatImage, rng: Generator
) -> Sample:
    """Doubles the image downwards, then sideways, each with a probability of its own.

    The boxes of the copy follow those of the original in the list.
    """
    below = rng.random() < settings.vertical_probability
    beside = rng.random() < settings.horizontal_probability
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
