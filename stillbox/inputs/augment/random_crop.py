"""Random windows that cover enough of some object.

The window is drawn like TensorFlow's `sample_distorted_bounding_box`, in whole pixels, with at most
100 attempts:

1. The aspect ratio (width over height) is uniform in its range.
2. The height is a uniform integer between those that give the least and the greatest area, the
   latter reduced until height and width fit into the image. The width follows, rounded half to
   even. An area that rounding moved out of its range is corrected by one row, once.
3. The corner is uniform over the integers below the free space, its end excluded.
4. The window is accepted if it covers `min_object_covered` of at least one box. Boxes are clipped
   to the image and cut to whole pixels for this; those without a pixel do not count. An image
   without boxes is its own box.

If no attempt is accepted, the window is the whole image.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.sample import Doubles, Floats, Sample, StoredSample

_ATTEMPTS = 100
Operation = TypeVar("Operation")


class CropWindow(NamedTuple):
    """A part of an image, in whole pixels."""

    y: int
    """First row."""
    x: int
    """First column."""
    height: int
    """Rows."""
    width: int
    """Columns."""


@implements(schema.RandomCropImage)
def random_crop_image(sample: Sample, config: schema.RandomCropImage, rng: Generator) -> Sample:
    """Crops to a random window, except with probability `random_coef`.

    Boxes that lie completely outside go, and those of which less than `overlap_thresh` is inside.
    """
    if rng.random() < config.random_coef:
        return sample
    height, width = sample.size
    window = sample_window(height, width, sample.boxes, config, rng)
    return crop(sample, window, config.overlap_thresh, clip=config.clip_boxes)


@implements(schema.SsdRandomCrop)
def ssd_random_crop(sample: Sample, config: schema.SsdRandomCrop, rng: Generator) -> Sample:
    """Applies one of several crops, each as likely as the others (arXiv:1512.02325, 2.2)."""
    return random_crop_image(sample, choose(config.operations, rng), rng)


def choose(operations: Sequence[Operation], rng: Generator) -> Operation:
    """Returns one of several config, each as likely as the others."""
    return operations[int(rng.random() * len(operations))]


def crop(sample: Sample, window: CropWindow, overlap_thresh: float, *, clip: bool) -> Sample:
    """Cuts the window out and re-expresses the remaining boxes in its frame.

    Boxes outside it go, and those of which less than `overlap_thresh` of the area is inside. `clip`
    ends the boxes at the window.
    """
    height, width = sample.size
    y, x, rows, columns = window
    scale = np.array([height, width, height, width], np.float64)
    frame = np.array([y, x, y + rows, x + columns]) / scale
    boxes = sample.boxes.astype(np.float64)
    inside = np.clip(boxes, np.tile(frame[:2], 2), np.tile(frame[2:], 2))
    outside = ((boxes[:, 2:] <= frame[:2]) | (boxes[:, :2] >= frame[2:])).any(axis=1)
    area = _areas(boxes)
    # Boxes without area are dropped, as in the original.
    keep = ~outside & (area > 0) & (_areas(inside) >= overlap_thresh * area)
    kept = sample.select(keep)
    moved = ((inside if clip else boxes)[keep] - np.tile(frame[:2], 2)) / np.tile(
        frame[2:] - frame[:2], 2
    )
    kept = replace(kept, boxes=moved.astype(np.float32))
    if isinstance(kept, StoredSample):
        return replace(kept, stored=kept.stored.crop(*window))
    return replace(kept, image=sample.image[y : y + rows, x : x + columns])


def sample_window(
    height: int, width: int, boxes: Floats, config: schema.RandomCropImage, rng: Generator
) -> CropWindow:
    """Draws a window as described above, for boxes `[N, 4]`, normalised to the image.

    All attempts are drawn and tested at once, so that the time is the same for all images.
    """
    draws = rng.random((4, _ATTEMPTS))
    low, high = config.min_aspect_ratio, config.max_aspect_ratio
    rows, columns, fits = _draw_sizes(
        height, width, low + draws[0] * (high - low), draws[1], config
    )
    y = np.floor(draws[2] * (height - rows))
    x = np.floor(draws[3] * (width - columns))
    windows = np.stack([y, x, y + rows, x + columns], axis=1)
    scale = np.array([height, width, height, width], np.float64)
    objects = np.trunc(np.clip(boxes, 0, 1) * scale) if len(boxes) else scale[None] * [0, 0, 1, 1]
    good = np.flatnonzero(fits & _covers(windows, objects, config.min_object_covered))
    if not len(good):
        return CropWindow(0, 0, height, width)
    first = good[0]
    return CropWindow(int(y[first]), int(x[first]), int(rows[first]), int(columns[first]))


def _draw_sizes(
    height: int, width: int, aspect: Doubles, draws: Doubles, config: schema.RandomCropImage
) -> tuple[Doubles, Doubles, NDArray[np.bool_]]:
    """Returns heights and widths, one for each attempt, and which of them may be used."""
    least, most = config.min_area * height * width, config.max_area * height * width
    lowest = np.rint(np.sqrt(least / aspect))
    highest = np.rint(np.sqrt(most / aspect))
    # Greatest height whose rounded width fits; one less if the division rounded up.
    fitting = np.floor((width + 0.5 - 1e-7) / aspect)
    fitting -= np.rint(fitting * aspect) > width
    highest = np.where(np.rint(highest * aspect) > width, fitting, highest)
    highest = np.minimum(highest, height)
    lowest = np.minimum(lowest, highest)
    rows = lowest + np.floor(draws * (highest - lowest + 1))
    rows += rows * np.rint(rows * aspect) < least
    rows -= rows * np.rint(rows * aspect) > most
    columns = np.rint(rows * aspect)
    area = rows * columns
    fits = (area >= least) & (area <= most) & (rows <= height) & (columns <= width) & (area >= 1)
    return rows, columns, fits


def _covers(windows: Doubles, objects: Doubles, least: float) -> NDArray[np.bool_]:
    """Returns `[M]`: which of the windows `[M, 4]` hold enough of one of the objects `[N, 4]`."""
    top_left = np.maximum(windows[:, None, :2], objects[:, :2])
    bottom_right = np.minimum(windows[:, None, 2:], objects[:, 2:])
    common = np.maximum(bottom_right - top_left, 0).prod(axis=2)
    area = _areas(objects)
    return ((area >= 1) & (common >= least * area)).any(axis=1)


def _areas(boxes: Doubles) -> Doubles:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
