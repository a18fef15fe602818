"""Crops with a least IoU with every box (arXiv:1512.02325, 2.2), as in MLPerf's SSD ResNet-34.

One draw:

1. With `whole_image_probability` the window is the whole image. Otherwise a least IoU is drawn from
   `min_ious`, uniformly.
2. Height and width of every candidate are uniform between `min_side` and `max_side`, and its corner
   is uniform over the free space.
3. A candidate is valid if its IoU with every box is above the least one, the centre of at least one
   box is inside, and neither side reaches `max_aspect_ratio` times the other. Sides are shares of
   the image's.
4. The last valid candidate is the window. Candidates are independent, so that the first would have
   the same distribution.

Without a valid candidate there is another draw, whole image included. The original repeats without
limit; here the window is the whole image after `max_draws`. An image without boxes gives the whole
image at once: no centre can be inside, so only that draw would end the original.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float64
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.crops import choose
from stillbox.inputs.interpolation import crop_and_resize
from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Boxes, Doubles, Pixels, Sample

Window = Float64[np.ndarray, "4"]
"""ymin, xmin, ymax, xmax, normalised to the image."""

_WHOLE = np.array([0.0, 0.0, 1.0, 1.0])


@implements(schema.SsdIouCrop)
def ssd_iou_crop(sample: Sample, config: schema.SsdIouCrop, rng: Generator) -> Sample:
    """Cuts the window out and resizes it, the whole image too, unless `resize_to` is empty.

    Boxes whose centre is outside go; the others are clipped to the window. The whole image leaves
    all boxes as they are.
    """
    window = draw_window(sample.boxes, sample.size, config, rng)
    if window is not None:
        sample = _move_boxes(sample, window)
    elif not config.resize_to:
        return sample
    else:
        window = _WHOLE
    return replace(sample, image=_cut(sample.image, window, config.resize_to))


def draw_window(
    boxes: Boxes, size: Size, config: schema.SsdIouCrop, rng: Generator
) -> Window | None:
    """Draws a window as described above; None: the whole image.

    Without resizing, windows are rounded down to whole pixels before they are tested.
    """
    if not len(boxes):
        return None
    objects, grid = boxes.astype(np.float64), None if config.resize_to else size
    for _ in range(config.max_draws):
        if rng.random() < config.whole_image_probability:
            return None
        min_iou = choose(config.min_ious, rng)
        windows = _candidates(config, grid, rng)
        valid = np.flatnonzero(_is_valid(windows, objects, min_iou, config.max_aspect_ratio))
        if len(valid):
            window: Window = windows[valid[-1]]
            return window
    return None


def _candidates(
    config: schema.SsdIouCrop, grid: Size | None, rng: Generator
) -> Float64[np.ndarray, "M 4"]:
    """Returns windows, rounded down to a grid of whole pixels, if any."""
    draws = rng.random((config.candidates, 4))
    sides = config.min_side + draws[:, :2] * (config.max_side - config.min_side)
    corner = draws[:, 2:] * (1 - sides)
    windows = np.concatenate([corner, corner + sides], axis=1)
    if grid is not None:
        windows = np.floor(windows * np.tile(grid, 2)) / np.tile(grid, 2)
    return windows


def _is_valid(
    windows: Float64[np.ndarray, "M 4"],
    boxes: Float64[np.ndarray, "N 4"],
    min_iou: float,
    max_aspect_ratio: float,
) -> Bool[np.ndarray, " M"]:
    height, width = (windows[:, 2:] - windows[:, :2]).T
    # Windows that are rounded to no pixel fail this too.
    is_even = (height < max_aspect_ratio * width) & (width < max_aspect_ratio * height)
    top_left = np.maximum(windows[:, None, :2], boxes[:, :2])
    bottom_right = np.minimum(windows[:, None, 2:], boxes[:, 2:])
    common = np.maximum(bottom_right - top_left, 0).prod(axis=2)
    union = (height * width)[:, None] + (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) - common
    overlaps = (common > min_iou * union).all(axis=1)
    return is_even & overlaps & _holds_centre(windows[:, None], boxes).any(axis=1)


def _holds_centre(window: Doubles, boxes: Float64[np.ndarray, "N 4"]) -> Bool[np.ndarray, "*M N"]:
    """Returns which boxes have their centre inside a window `[4]`, or in each of `[M, 1, 4]`."""
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    inside = (centre > window[..., :2]) & (centre < window[..., 2:])
    return inside[..., 0] & inside[..., 1]


def _move_boxes(sample: Sample, window: Window) -> Sample:
    start, stop = np.tile(window[:2], 2), np.tile(window[2:], 2)
    kept = sample.select(_holds_centre(window, sample.boxes.astype(np.float64)))
    boxes = (np.clip(kept.boxes, start, stop) - start) / (stop - start)
    return replace(kept, boxes=boxes.astype(np.float32))


def _cut(image: Pixels, window: Window, resize_to: tuple[int, ...]) -> Pixels:
    if resize_to:
        out = np.empty((*resize_to, 3), np.float32)
        crop_and_resize(image, window, out)
        return out
    # On the grid already: rounding only undoes the division.
    y, x, bottom, right = np.rint(window * np.tile(image.shape[:2], 2)).astype(int)
    return image[y:bottom, x:right]
