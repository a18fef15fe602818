"""Padding to larger canvases."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.draws import random_integer
from stillbox.inputs.augment.frames import mean_color, move_boxes, paste_on_canvas
from stillbox.inputs.augment.random_crop import choose, random_crop_image
from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Sample


@implements(schema.RandomPadImage)
def random_pad_image(sample: Sample, config: schema.RandomPadImage, rng: Generator) -> Sample:
    """Puts the image at a random place on a canvas of random size.

    Without sizes the canvas has between one and two times the image's height and width.
    """
    height, width = sample.image.shape[:2]
    least = config.min_height or height, config.min_width or width
    most = config.max_height or 2 * height, config.max_width or 2 * width
    return pad_between(sample, least, most, config.pad_color, rng)


@implements(schema.RandomAbsolutePadImage)
def random_absolute_pad_image(
    sample: Sample, config: schema.RandomAbsolutePadImage, rng: Generator
) -> Sample:
    """Adds a random number of rows and columns, divided at random between the sides."""
    height, width = sample.image.shape[:2]
    most = height + config.max_height_padding, width + config.max_width_padding
    return pad_between(sample, (height, width), most, config.pad_color, rng)


@implements(schema.RandomCropPadImage)
def random_crop_pad_image(
    sample: Sample, config: schema.RandomCropPadImage, rng: Generator
) -> Sample:
    """Crops, then pads to a random size relative to the image before the crop.

    With probability `random_coef` only the crop is skipped; the padding is not.
    """
    height, width = sample.image.shape[:2]
    cropped = random_crop_image(sample, config, rng)
    least, most = (
        (int(ratio[0] * height), int(ratio[1] * width))
        for ratio in (config.min_padded_size_ratio, config.max_padded_size_ratio)
    )
    return pad_between(cropped, least, most, config.pad_color, rng)


@implements(schema.SsdRandomCropPad)
def ssd_random_crop_pad(sample: Sample, config: schema.SsdRandomCropPad, rng: Generator) -> Sample:
    """Applies one of several crops with padding, chosen uniformly."""
    return random_crop_pad_image(sample, choose(config.operations, rng), rng)


def pad_between(
    sample: Sample, least: Size, most: Size, pad_color: tuple[float, ...], rng: Generator
) -> Sample:
    """Pads to a random size between `least` and `most`, the latter excluded.

    As in the original, the last position is never drawn either; sizes of the image that are above
    `least` or `most` replace them. An empty `pad_color` is the image's mean.
    """
    size = sample.image.shape[0], sample.image.shape[1]
    height, width = (
        random_integer(rng, max(low, side), max(high, side))
        if max(high, side) > max(low, side)
        else max(high, side)
        for low, high, side in zip(least, most, size, strict=True)
    )
    y, x = random_integer(rng, 0, height - size[0]), random_integer(rng, 0, width - size[1])
    color = np.array(pad_color, np.float32) if pad_color else mean_color(sample.image)
    return replace(
        sample,
        image=paste_on_canvas(sample.image, (height, width), (y, x), color),
        boxes=move_boxes(sample.boxes, size, (-y, -x), (height, width)),
    )
