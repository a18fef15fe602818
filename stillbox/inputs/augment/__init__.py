"""Augmentations: one file each, registered here under its class of the schema."""

from collections.abc import Callable, Sequence
from typing import Any

from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.inputs.augment.horizontal_flip import random_horizontal_flip
from stillbox.inputs.augment.random_crop import random_crop_image, ssd_random_crop
from stillbox.inputs.sample import Sample

# Any: each operation takes its own class of the schema, which the key guarantees.
_OPERATIONS: dict[type, Callable[[Sample, Any, Generator], Sample]] = {
    schema.RandomHorizontalFlip: random_horizontal_flip,
    schema.RandomCropImage: random_crop_image,
    schema.SsdRandomCrop: ssd_random_crop,
}


def apply_augmentations(
    augmentations: Sequence[schema.Augmentation], sample: Sample, rng: Generator
) -> Sample:
    """Applies all augmentations in their order.

    Pixels stay uint8. The original casts to float32 first, which is the same for operations that
    only move pixels.

    Args:
        augmentations: as the experiment lists them.
        sample: an image before it is resized; it is left as it is.
        rng: the only source of randomness.
    """
    for augmentation in augmentations:
        sample = _OPERATIONS[type(augmentation)](sample, augmentation, rng)
    return sample
