"""Augmentations by their schema classes, each called with `(sample, config, rng)`."""

from collections.abc import Sequence

from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, import_all
from stillbox.inputs.sample import Sample

import_all(__name__, __path__)

# They need no pixels: a file that is not decoded yet stays so.
_WITHOUT_PIXELS = (
    schema.RandomHorizontalFlip,
    schema.RandomCropImage,
    schema.SsdRandomCrop,
    schema.RandomCropToAspectRatio,
    schema.SsdRandomCropFixedAspectRatio,
)


def apply_augmentations(
    augmentations: Sequence[schema.Augmentation], sample: Sample, rng: Generator
) -> Sample:
    """Applies augmentations in their order; `sample`, an image before resizing, is not changed.

    The original casts to float32 first. Here pixels stay uint8 until an operation changes values,
    which is the same and moves a quarter of the bytes.

    Raises:
        ImageError: the file of a sample that is not decoded yet is truncated or corrupt.
    """
    for augmentation in augmentations:
        if type(augmentation) not in _WITHOUT_PIXELS:
            sample = sample.decoded()
        sample = implementation_of(augmentation)(sample, augmentation, rng)
    return sample
