"""Strong augmentations: random affine maps, large-scale jitter, mosaic and mixup.

All have the geometry of mmdet. Large-scale jitter is arXiv:2012.07177, mosaic arXiv:2004.10934,
mixup arXiv:1710.09412. The records that mosaic and mixup add are drawn from the whole set with the
numbers of the image. They come as they are stored: earlier augmentations in the
list do not change them.

Sources: mmdet `RandomAffine`, `Mosaic` and `MixUp` (`mmdet/datasets/transforms/transforms.py`);
mmcv `RandomResize` and `Resize`, mmdet `RandomCrop` of type `absolute_range` and
`FilterAnnotations`, in the order of `configs/common/lsj-100e_coco-detection.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import cv2
import numpy as np
from jaxtyping import Float32, Float64
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.image_kind import per_channel
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
from stillbox.inputs.channels import with_channels
from stillbox.inputs.resize import Placement
from stillbox.inputs.sample import Pixels, Sample, Size

Matrix = Float32[np.ndarray, "3 3"]
"""From `(x, y, 1)` in the image to `(x, y, 1)` in the result, in pixels."""


class AffineDraws(NamedTuple):
    """Random numbers of one image, each in `[0, 1)`."""

    rotation: float
    scale: float
    shear_x: float
    shear_y: float
    shift_x: float
    shift_y: float


@implements(schema.RandomAffine)
def random_affine(sample: Sample, config: schema.RandomAffine, rng: Generator) -> Sample:
    """Moves image and boxes by a random affine map."""
    height, width = config.output_size or sample.size
    matrix = affine_matrix((height, width), config, AffineDraws(*rng.random(6).tolist()))
    return transform(sample, (height, width), config, matrix)


def affine_matrix(size: Size, config: schema.RandomAffine, draws: AffineDraws) -> Matrix:
    """Returns shift, relative to the result's size, times shear times rotation times scale."""
    angle = math.radians(between(-config.max_rotation, config.max_rotation, draws.rotation))
    scale = between(config.min_scale, config.max_scale, draws.scale)
    shear_x, shear_y = (
        math.tan(math.radians(between(-config.max_shear, config.max_shear, draw)))
        for draw in (draws.shear_x, draws.shear_y)
    )
    shift_x = between(-config.max_shift, config.max_shift, draws.shift_x) * size[1]
    shift_y = between(-config.max_shift, config.max_shift, draws.shift_y) * size[0]
    cosine, sine = math.cos(angle), math.sin(angle)
    shift = _matrix([1, 0, shift_x], [0, 1, shift_y])
    shear = _matrix([1, shear_x, 0], [shear_y, 1, 0])
    rotation = _matrix([cosine, -sine, 0], [sine, cosine, 0])
    product: Matrix = shift @ shear @ rotation @ _matrix([scale, 0, 0], [0, scale, 0])
    return product


def transform(sample: Sample, size: Size, config: schema.RandomAffine, matrix: Matrix) -> Sample:
    """Returns the sample moved by the matrix, with an image of `size`."""
    color = np.asarray(per_channel(config.pad_color, sample.image.shape[2]))
    if sample.image.dtype == np.uint8:
        color = np.rint(color)
    image = cv2.warpAffine(sample.image, matrix[:2], (size[1], size[0]), borderValue=color.tolist())
    boxes = project_boxes(in_pixels(sample), matrix)
    return replace(keep_overlapping(sample, boxes, size, config), image=with_channels(image))


def project_boxes(boxes: Float64[np.ndarray, "N 4"], matrix: Matrix) -> Float64[np.ndarray, "N 4"]:
    """Returns the bounding boxes of the moved corners, in pixels."""
    corners = boxes[:, [[1, 0], [3, 0], [1, 2], [3, 2]]]
    moved = corners @ matrix[:2, :2].T.astype(np.float64) + matrix[:2, 2]
    return np.concatenate([moved.min(axis=1)[:, ::-1], moved.max(axis=1)[:, ::-1]], axis=1)


def _matrix(*rows: list[float]) -> Matrix:
    return np.array([*rows, [0, 0, 1]], np.float32)


class JitterDraws(NamedTuple):
    """Random numbers of one image, each in `[0, 1)`."""

    scale: float
    offset: tuple[float, float]
    """Rows and columns to shift by."""


@implements(schema.LargeScaleJitter)
def large_scale_jitter(sample: Sample, config: schema.LargeScaleJitter, rng: Generator) -> Sample:
    """Scales, cuts and pads at random; the result is a square of `output_size`."""
    scale, y, x = rng.random(3).tolist()
    return jitter(sample, config, place_jittered(sample.size, config, JitterDraws(scale, (y, x))))


def place_jittered(size: Size, config: schema.LargeScaleJitter, draws: JitterDraws) -> Placement:
    """Returns the size of the whole image after scaling, and the part of it that is kept.

    The long side is cut to whole pixels; the other one follows, rounded. Every place of the part is
    as likely.
    """
    scale = between(config.min_scale, config.max_scale, draws.scale)
    factor = max(int(config.output_size * scale), 1) / max(size)
    height, width = (max(int(side * factor + 0.5), 1) for side in size)
    rows, columns = min(height, config.output_size), min(width, config.output_size)
    y = int(draws.offset[0] * (height - rows + 1))
    x = int(draws.offset[1] * (width - columns + 1))
    return Placement((height, width), (y, x), (rows, columns))


def jitter(sample: Sample, config: schema.LargeScaleJitter, placement: Placement) -> Sample:
    """Returns the sample at its place on a square canvas."""
    (height, width), (y, x), (rows, columns) = placement
    side = config.output_size
    whole = with_channels(cv2.resize(sample.image, (width, height)))
    canvas = blank_canvas((side, side), config.pad_color, whole.dtype, whole.shape[2])
    canvas[:rows, :columns] = whole[y : y + rows, x : x + columns]
    # Each axis has its own ratio of sizes.
    boxes = sample.boxes * np.tile([float(height), width], 2) - np.tile([y, x], 2)
    moved = keep_overlapping(sample, boxes, (rows, columns), config, frame=(side, side))
    return replace(moved, image=canvas)


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
    dtype = np.result_type(*(picture.image for picture in pictures))
    canvas = blank_canvas(size, config.pad_color, dtype, pictures[0].image.shape[2])
    boxes = []
    for picture, (above, left) in zip(pictures, _QUARTERS, strict=True):
        image, ratio = fit_image(picture.image, (config.height, config.width))
        corner = center[0] - above * image.shape[0], center[1] - left * image.shape[1]
        paste(canvas, image, corner)
        # The factor is not rounded to whole pixels.
        boxes.append(in_pixels(picture) * ratio + np.tile(corner, 2))
    kept = keep_overlapping(joined(pictures), np.concatenate(boxes), size, config)
    return replace(kept, image=canvas)


def paste(canvas: Pixels, image: Pixels, corner: Size) -> None:
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
    """First row and column, as shares in `[0, 1)` of the rows and columns that do not fit."""


@implements(schema.MixUp)
def mixup(sample: Sample, config: schema.MixUp, rng: Generator, partners: Partners) -> Sample:
    """Mixes the image with another one that has boxes, with the given probability."""
    if rng.random() >= config.probability:
        return sample
    scale = uniform(rng, config.min_scale, config.max_scale)
    flip, y, x = rng.random(3).tolist()
    draws = MixUpDraws(scale, flip < config.flip_probability, (y, x))
    other = partners.draw(rng, with_boxes=True)
    return sample if other is None else mix(sample, other, config, draws)


def mix(sample: Sample, other: Sample, config: schema.MixUp, draws: MixUpDraws) -> Sample:
    """Returns the mean of two pictures in the size of the first, if the other has boxes."""
    if not len(other.boxes):
        return sample
    fitted, ratio = fit_image(other.image, (config.height, config.width))
    color = np.array(config.pad_color, np.float32)
    canvas = paste_on_canvas(fitted, (config.height, config.width), (0, 0), color)
    size = max(int(config.height * draws.scale), 1), max(int(config.width * draws.scale), 1)
    canvas = with_channels(cv2.resize(canvas, size[::-1]))
    boxes = in_pixels(other) * ratio * draws.scale
    if config.clip_boxes:
        boxes = np.clip(boxes, 0, np.tile(size, 2))
    if draws.flip:
        canvas = with_channels(cv2.flip(canvas, 1))
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
