"""Windows that are padded afterwards (fact sheet 1.4)."""

from numpy.random import Generator

from stillbox.experiment.schema import RandomCropPadImage, SsdRandomCropPad
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.padding import pad_between
from stillbox.inputs.augment.random_crop import choose, random_crop_image
from stillbox.inputs.sample import Sample


@implements(RandomCropPadImage)
def random_crop_pad_image(sample: Sample, settings: RandomCropPadImage, rng: Generator) -> Sample:
    """Crops, then pads to a random size relative to the image before the crop.

    With probability `random_coef` only the crop is left out; the padding is not.
    """
    height, width = sample.image.shape[:2]
    cropped = random_crop_image(sample, settings, rng)
    low, high = settings.min_padded_size_ratio, settings.max_padded_size_ratio
    return pad_between(
        cropped,
        (int(low[0] * height), int(low[1] * width)),
        (int(high[0] * height), int(high[1] * width)),
        settings.pad_color,
        rng,
    )


@implements(SsdRandomCropPad)
def ssd_random_crop_pad(sample: Sample, settings: SsdRandomCropPad, rng: Generator) -> Sample:
    """Applies one of several crops with padding, each as likely as the others."""
    return random_crop_pad_image(sample, choose(settings.operations, rng), rng)
