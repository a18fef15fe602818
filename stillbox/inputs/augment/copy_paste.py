"""Copy-paste: objects of another image, pasted as the rectangles of their boxes."""

from dataclasses import replace
from typing import NamedTuple, cast

import cv2
import numpy as np
from jaxtyping import Float64, Int
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.common import (
    Partners,
    in_pixels,
    joined,
    keep_overlapping,
    random_integer,
    uniform,
)
from stillbox.inputs.augment.strong import paste
from stillbox.inputs.sample import Pixels, Sample, Size
from stillbox.records.tile_grid import TileWindow, visible_shares

PixelBoxes = Float64[np.ndarray, "N 4"]
_PLACES = 10
"""Places that are drawn for an object."""


class _Object(NamedTuple):
    """An object to paste."""

    row: int
    """The number of the box in the other image."""
    pixels: Pixels


@implements(schema.CopyPaste)
def copy_paste(
    sample: Sample, config: schema.CopyPaste, rng: Generator, partners: Partners
) -> Sample:
    """Pastes objects of another image that has boxes, with the given probability."""
    if rng.random() >= config.probability:
        return sample
    other = partners.draw(rng, with_boxes=True)
    rows = np.empty(0, int) if other is None else uncovered(other, config.max_covered)
    if other is None or not len(rows):
        return sample
    image, boxes, pasted = sample.image.copy(), in_pixels(sample), []
    for _ in range(random_integer(rng, 1, config.max_objects + 1)):
        row, pixels = _draw_object(other, rows, config, rng)
        window = _draw_place(boxes, image.shape[:2], pixels.shape[:2], config.max_covered, rng)
        if window is None:
            continue
        paste(image, pixels, window[:2])
        boxes = np.concatenate([boxes, np.array([window], np.float64)])
        pasted.append(row)
    both = joined([sample, other.select(np.array(pasted, int))])
    return replace(keep_overlapping(both, boxes, sample.size, config), image=image)


def uncovered(sample: Sample, most: float) -> Int[np.ndarray, " K"]:
    """Returns the boxes that count and of which no other one covers more than a share."""
    boxes = in_pixels(sample)
    free = sample.weights > 0
    for row, window in enumerate(boxes.tolist()):
        covered = visible_shares(boxes, tuple(window)) > most
        covered[row] = False
        free &= ~covered
    return np.flatnonzero(free)


def _draw_object(
    other: Sample, rows: Int[np.ndarray, " K"], config: schema.CopyPaste, rng: Generator
) -> _Object:
    class_ids = other.class_ids[rows]
    classes = np.unique(class_ids)
    among = rows[class_ids == classes[random_integer(rng, 0, len(classes))]]
    row = int(among[random_integer(rng, 0, len(among))])
    ymin, xmin, ymax, xmax = np.rint(in_pixels(other)[row]).astype(int).tolist()
    # A box below a pixel has the pixel that it lies in.
    ymin, xmin = min(ymin, other.size[0] - 1), min(xmin, other.size[1] - 1)
    part = other.image[ymin : max(ymax, ymin + 1), xmin : max(xmax, xmin + 1)]
    scale = uniform(rng, config.min_scale, config.max_scale)
    height, width = (max(round(side * scale), 1) for side in part.shape[:2])
    pixels = cv2.resize(part, (width, height))
    if rng.random() < config.flip_probability:
        pixels = cv2.flip(pixels, 1)
    return _Object(row, cast(Pixels, pixels))


def _draw_place(
    boxes: PixelBoxes, size: Size, sides: Size, most: float, rng: Generator
) -> TileWindow | None:
    """Returns a window with these sides that covers no box too much; None: there is no place.

    The middle of the window is a pixel of the image, beyond which the window may reach.
    """
    rows, columns = sides
    for _ in range(_PLACES):
        y = random_integer(rng, 0, size[0]) - rows // 2
        x = random_integer(rng, 0, size[1]) - columns // 2
        window = y, x, y + rows, x + columns
        if not (visible_shares(boxes, window) > most).any():
            return window
    return None
