"""Large-scale jitter (arXiv:2012.07177) by the geometry of mmdet.

Source: mmcv `RandomResize` and `Resize`, mmdet `RandomCrop` of type `absolute_range` and
`FilterAnnotations`, in the order of `configs/common/lsj-100e_coco-detection.py`.
"""

from dataclasses import replace
from typing import NamedTuple, cast

import cv2
import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.common import between, blank_canvas, keep_overlapping
from stillbox.inputs.resize import Placement
from stillbox.inputs.sample import Pixels, Sample, Size


class JitterDraws(NamedTuple):
    """Random numbers of one image, each in `[0, 1)`."""

    scale: float
    offset: tuple[float, float]
    """Of rows and columns."""


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
