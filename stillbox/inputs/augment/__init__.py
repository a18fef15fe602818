"""Augmentations; each file registers its own."""

from collections.abc import Sequence

from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, import_all
from stillbox.inputs.sample import Sample

import_all(__name__, __path__)


def apply_augmentations(
    augmentations: Sequence[schema.Augmentation], sample: Sample, rng: Generator
) -> Sample:
    """Applies all augmentations in their order.

    The original casts to float32 first. Here pixels stay uint8 as long as operations only move
    them, which is the same and four times less to move.

    Args:
        augmentations: as the experiment lists them.
        sample: an image before it is resized; it is left as it is.
        rng: the only source of randomness.
    """
    for augmentation in augmentations:
        sample = implementation_of(augmentation)(sample, augmentation, rng)
    return sample
