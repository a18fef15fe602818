"""Larger canvases (fact sheet 1.4)."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment.schema import RandomAbsolutePadImage, RandomPadImage
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.draws import whole_number
from stillbox.inputs.augment.frames import mean_color, move_boxes, place
from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Sample


@implements(RandomPadImage)
def random_pad_image(sample: Sample, settings: RandomPadImage, rng: Generator) -> Sample:
    """Puts the image at a random place on a canvas of random size.

    Without sizes the canvas has between one and two times the image's height and width.
    """
    height, width = sample.image.shape[:2]
    least = settings.min_height or height, settings.min_width or width
    most = settings.max_height or 2 * height, settings.max_width or 2 * width
    return pad_between(sample, least, most, settings.pad_color, rng)


@implements(RandomAbsolutePadImage)
def random_absolute_pad_image(
    sample: Sample, settings: RandomAbsolutePadImage, rng: Generator
) -> Sample:
    """Adds up to so many rows and columns, shared out at random between the sides."""
    height, width = sample.image.shape[:2]
    most = height + settings.max_height_padding, width + settings.max_width_padding
    return pad_between(sample, (height, width), most, settings.pad_color, rng)


def pad_between(
    sample: Sample, least: Size, most: Size, pad_color: tuple[float, ...], rng: Generator
) -> Sample:
    """Pads to a random size.

    As in the original, the greatest size and the last place are never drawn; an image larger than
    `least` or `most` counts in their place.

    Args:
        sample: image and boxes.
        least: least height and width of the result.
        most: greatest height and width of the result, excluded.
        pad_color: colour of the padding; empty: the image's mean.
        rng: four numbers are drawn.
    """
    size = sample.image.shape[0], sample.image.shape[1]
    height, width = (
        whole_number(rng, max(low, side), max(high, side))
        if max(high, side) > max(low, side)
        else max(high, side)
        for low, high, side in zip(least, most, size, strict=True)
    )
    y, x = whole_number(rng, 0, height - size[0]), whole_number(rng, 0, width - size[1])
    color = np.array(pad_color, np.float32) if pad_color else mean_color(sample.image)
    return replace(
        sample,
        image=place(sample.image, (height, width), (y, x), color),
        boxes=move_boxes(sample.boxes, size, (-y, -x), (height, width)),
    )
