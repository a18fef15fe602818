"""Square crops, padded with black."""

import math
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.draws import random_integer, uniform
from stillbox.inputs.augment.frames import keep_inside, move_boxes, paste_on_canvas
from stillbox.inputs.augment.sizes import resized
from stillbox.inputs.sample import Sample

_BLACK = np.zeros(3, np.float32)


@implements(schema.RandomSquareCropByScale)
def random_square_crop_by_scale(
    sample: Sample, config: schema.RandomSquareCropByScale, rng: Generator
) -> Sample:
    """Cuts a square around a random centre (CenterNet, arXiv:1904.07850).

    Its side is the long side of the image times one of `num_scales` factors. The centre keeps a
    border from the edges. Boxes completely outside go, the others are clipped. The original leaves
    out the image's last row and column; they stay here.
    """
    height, width = sample.image.shape[:2]
    scales = np.linspace(config.min_scale, config.max_scale, config.num_scales)
    side = max(int(scales[random_integer(rng, 0, config.num_scales)] * max(height, width)), 1)
    y = _centre(height, config.max_border, rng) - side // 2
    x = _centre(width, config.max_border, rng) - side // 2
    top, left = max(y, 0), max(x, 0)
    part = sample.image[top : y + side, left : x + side]
    moved = replace(
        sample,
        image=paste_on_canvas(part, (side, side), (top - y, left - x), _BLACK),
        boxes=move_boxes(sample.boxes, (height, width), (y, x), (side, side)),
    )
    return keep_inside(moved)


def _centre(side: int, max_border: int, rng: Generator) -> int:
    divisor = 2 ** math.ceil(math.log2(2 * max_border / side))
    border = max_border // int(min(max(divisor, 1), max_border))
    # Only for a single row or column the border is beyond the middle.
    border = min(border, side // 2)
    return random_integer(rng, border, side - border + 1)


@implements(schema.RandomScaleCropAndPadToSquare)
def random_scale_crop_and_pad_to_square(
    sample: Sample, config: schema.RandomScaleCropAndPadToSquare, rng: Generator
) -> Sample:
    """Scales at random, then cuts or pads with black to a square (EfficientDet, arXiv:1911.09070).

    The long side becomes a random factor times `output_size`, and both sides are cut to whole
    pixels. What is longer than `output_size` is cut at a random place; what is shorter is padded at
    the bottom and right. Boxes completely outside go, the others are clipped.
    """
    height, width = sample.image.shape[:2]
    side = config.output_size
    long_side = uniform(rng, config.min_scale, config.max_scale) * side
    rows, columns = (
        max(int(long_side * length / max(height, width)), 1) for length in (height, width)
    )
    y, x = (int(max(length - side, 0) * rng.random()) for length in (rows, columns))
    part = resized(sample.image, (rows, columns))[y : y + side, x : x + side]
    moved = replace(
        sample,
        image=paste_on_canvas(part, (side, side), (0, 0), _BLACK),
        boxes=move_boxes(sample.boxes, (rows, columns), (y, x), (side, side)),
    )
    return keep_inside(moved)
