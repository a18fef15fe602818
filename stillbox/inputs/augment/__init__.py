"""Augmentations by their schema classes, each called with `(sample, config, rng)`.

Those that combine records are called with `(sample, config, rng, partners)`.
"""

from collections.abc import Sequence

from numpy.random import Generator

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, import_all
from stillbox.inputs.augment.common import Partners
from stillbox.inputs.sample import Sample

import_all(__name__, __path__)

# Augmentations that need no pixels: a file that is not decoded yet stays so.
_WITHOUT_PIXELS = (
    schema.RandomHorizontalFlip,
    schema.RandomCropImage,
    schema.SsdRandomCrop,
    schema.RandomCropToAspectRatio,
    schema.SsdRandomCropFixedAspectRatio,
)


def apply_augmentations(
    augmentations: Sequence[schema.Augmentation],
    sample: Sample,
    rng: Generator,
    partners: Partners | None = None,
) -> Sample:
    """Applies augmentations in their order; `sample`, an image before resizing, is not changed.

    The original casts to float32 first. Here pixels stay uint8 until an operation changes values,
    which is the same and moves a quarter of the bytes. Mosaic and mixup draw from `partners`.

    Raises:
        ImageError: the file of a sample that is not decoded yet is truncated or corrupt.
        UserError: an augmentation combines records, and there are none to draw from.
    """
    for augmentation in augmentations:
        if type(augmentation) not in _WITHOUT_PIXELS:
            sample = sample.decoded()
        implementation = implementation_of(augmentation)
        if not isinstance(augmentation, schema.MixingAugmentation):
            sample = implementation(sample, augmentation, rng)
        elif partners is not None:
            sample = implementation(sample, augmentation, rng, partners)
        else:
            raise UserError(
                f"{augmentation.kind} combines an image with other records, and there is no "
                "indexed set of records to draw them from",
                where="train.augmentations",
                fix="pass the data set as partners, or leave the augmentation out",
            )
    return sample


def in_force(
    augmentations: Sequence[schema.Augmentation], steps_left: int | None
) -> list[schema.Augmentation]:
    """Returns the augmentations that are in force so many steps before the end, if there is one."""
    return [
        augmentation
        for augmentation in augmentations
        if steps_left is None
        or not isinstance(augmentation, schema.StrongAugmentation)
        or steps_left > augmentation.skip_last_steps
    ]
