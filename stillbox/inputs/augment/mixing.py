"""Mosaic (arXiv:2004.10934) and mixup (arXiv:1710.09412) by the geometry of mmdet.

The other records are drawn from all of the set, each as likely, with the numbers of the image. They
come as they are stored: augmentations before in the list do not change them.

Source: mmdet `Mosaic` and `MixUp` (`mmdet/datasets/transforms/transforms.py`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import cv2
import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.common import (
    Partners,
    between,
    blank_canvas,
    fit_image,
    in_pixels,
    joined,
    keep_overlapping,
    paste_on_canvas,
    uniform,
)
from stillbox.inputs.sample import Pixels, Sample, Size

# Whether the picture lies above and left of the point: upper left, upper right, lower left, ...
_QUARTERS = ((True, True), (True, False), (False, True), (False, False))


@implements(schema.Mosaic)
def mosaic(sample: Sample, config: schema.Mosaic, rng: Generator, partners: Partners) -> Sample:
    """Puts the image and three others onto one canvas, with the given probability.

    The image itself takes the place of another one that cannot be used.
    """
    if rng.random() >= config.probability:
        return sample
    y, x = rng.random(2).tolist()
    others = [partners.draw(rng) or sample for _ in range(config.others)]
    return combine([sample, *others], config, place_center(config, (y, x)))


def place_center(config: schema.Mosaic, draws: tuple[float, float]) -> Size:
    """Returns row and column of the point where the pictures meet, for two numbers in `[0, 1)`."""
    y, x = (between(config.min_center, config.max_center, draw) for draw in draws)
    return int(y * config.height), int(x * config.width)


def combine(pictures: Sequence[Sample], config: schema.Mosaic, center: Size) -> Sample:
    """Returns the mosaic of four pictures that meet at a row and column of the canvas."""
    size = 2 * config.height, 2 * config.width
    canvas = blank_canvas(
        size, config.pad_color, np.result_type(*(picture.image for picture in pictures))
    )
    boxes = []
    for picture, (above, left) in zip(pictures, _QUARTERS, strict=True):
        image, ratio = fit_image(picture.image, (config.height, config.width))
        corner = center[0] - above * image.shape[0], center[1] - left * image.shape[1]
        _paste(canvas, image, corner)
        # The factor is not rounded to whole pixels.
        boxes.append(in_pixels(picture) * ratio + np.tile(corner, 2))
    kept = keep_overlapping(joined(pictures), np.concatenate(boxes), size, config)
    return replace(kept, image=canvas)


def _paste(canvas: Pixels, image: Pixels, corner: Size) -> None:
    """Puts the part of an image that is on the canvas there; the corner may lie outside."""
    y, x = corner
    top, left = max(-y, 0), max(-x, 0)
    part = image[top : canvas.shape[0] - y, left : canvas.shape[1] - x]
    canvas[y + top : y + top + part.shape[0], x + left : x + left + part.shape[1]] = part


class MixUpDraws(NamedTuple):
    """What is random about the other picture."""

    scale: float
    """Factor on its size."""
    flip: bool
    """Whether it is mirrored."""
    offset: tuple[float, float]
    """Its first row and column, as shares in `[0, 1)` of those that it has too many."""


@implements(schema.MixUp)
def mixup(sample: Sample, config: schema.MixUp, rng: Generator, partners: Partners) -> Sample:
    """Mixes the image with another one, with the given probability.

    Without a record that has boxes the image stays as it is.
    """
    if rng.random() >= config.probability:
        return sample
    scale = uniform(rng, config.min_scale, config.max_scale)
    flip, y, x = rng.random(3).tolist()
    draws = MixUpDraws(scale, flip < config.flip_probability, (y, x))
    other = partners.draw(rng, with_boxes=True)
    return sample if other is None else mix(sample, other, config, draws)


def mix(sample: Sample, other: Sample, config: schema.MixUp, draws: MixUpDraws) -> Sample:
    """Returns the mean of two pictures, of the size of the first, with the boxes of both.

    A picture without boxes changes nothing.
    """
    if not len(other.boxes):
        return sample
    fitted, ratio = fit_image(other.image, (config.height, config.width))
    color = np.array(config.pad_color, np.float32)
    canvas = paste_on_canvas(fitted, (config.height, config.width), (0, 0), color)
    size = max(int(config.height * draws.scale), 1), max(int(config.width * draws.scale), 1)
    canvas = cast(Pixels, cv2.resize(canvas, size[::-1]))
    boxes = in_pixels(other) * ratio * draws.scale
    if config.clip_boxes:
        boxes = np.clip(boxes, 0, np.tile(size, 2))
    if draws.flip:
        canvas = cast(Pixels, cv2.flip(canvas, 1))
        boxes = np.stack(
            [boxes[:, 0], size[1] - boxes[:, 3], boxes[:, 2], size[1] - boxes[:, 1]], 1
        )
    padded = max(size[0], sample.size[0]), max(size[1], sample.size[1])
    canvas = paste_on_canvas(canvas, padded, (0, 0), color)
    # The last place is never drawn, as in the original.
    y, x = (int(d * (p - s)) for d, p, s in zip(draws.offset, padded, sample.size, strict=True))
    part = canvas[y : y + sample.size[0], x : x + sample.size[1]]
    every = np.concatenate([in_pixels(sample), boxes - np.tile([y, x], 2)])
    kept = keep_overlapping(joined([sample, other]), every, sample.size, config)
    return replace(kept, image=_mean(sample.image, part))


def _mean(image: Pixels, other: Pixels) -> Pixels:
    """Returns the mean of two images, rounded down if it is uint8."""
    if image.dtype == other.dtype == np.uint8:
        # Without the carry that would need more bits.
        return cast(Pixels, (image & other) + ((image ^ other) >> 1))
    return ((image + other.astype(np.float32)) / 2).astype(np.float32)
