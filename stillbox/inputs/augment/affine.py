"""A random affine map about the upper left corner, and large-scale jitter (arXiv:2012.07177).

Both have the geometry of mmdet. Sources: mmdet `RandomAffine`
(`mmdet/datasets/transforms/transforms.py`); mmcv `RandomResize` and `Resize`, mmdet `RandomCrop` of
type `absolute_range` and `FilterAnnotations`, in the order of
`configs/common/lsj-100e_coco-detection.py`.
"""

import math
from dataclasses import replace
from typing import NamedTuple, cast

import cv2
import numpy as np
from jaxtyping import Float32, Float64
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.common import between, blank_canvas, in_pixels, keep_overlapping
from stillbox.inputs.resize import Placement
from stillbox.inputs.sample import Pixels, Sample, Size

Matrix = Float32[np.ndarray, "3 3"]
"""From `(x, y, 1)` of the image to that of the result, in pixels."""


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
    """Returns shift times shear times rotation times scale, in float32.

    `size` is that of the result, which the shift is relative to.
    """
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
    color = np.asarray(config.pad_color)
    if sample.image.dtype == np.uint8:
        color = np.rint(color)
    image = cv2.warpAffine(sample.image, matrix[:2], (size[1], size[0]), borderValue=color.tolist())
    boxes = project_boxes(in_pixels(sample), matrix)
    return replace(keep_overlapping(sample, boxes, size, config), image=cast(Pixels, image))


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
    whole = cast(Pixels, cv2.resize(sample.image, (width, height)))
    canvas = blank_canvas((side, side), config.pad_color, whole.dtype)
    canvas[:rows, :columns] = whole[y : y + rows, x : x + columns]
    # Each axis has its own ratio of sizes.
    boxes = sample.boxes * np.tile([float(height), width], 2) - np.tile([y, x], 2)
    moved = keep_overlapping(sample, boxes, (rows, columns), config, frame=(side, side))
    return replace(moved, image=canvas)
