"""Windows that every box overlaps enough (arXiv:1512.02325, 2.2; SSD ResNet-34 fact sheet 4.2).

One draw:

1. With `whole_image_probability` the window is the whole image. Otherwise a least IoU is taken from
   `min_ious`, each as likely.
2. Of every candidate, height and width are uniform between `min_side` and `max_side`, and the
   corner is uniform over the free space. All of them are judged at once.
3. A candidate is valid if its IoU with every box is above the least one, the centre of at least one
   box is inside, and neither side reaches `max_aspect_ratio` times the other. Sides are shares of
   the image's.
4. The last valid candidate is the window. They are independent of each other, so that a rule that
   took the first would give windows of the same distribution.

Without a valid candidate there is another draw, whole image included. The original goes on for
ever; here the whole image is the window after `max_draws`. It is so from the start where there are
no boxes: no centre can be inside, and no draw but that of the whole image would end the original.
"""

from dataclasses import replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.experiment.schema import SsdIouCrop
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.random_crop import choose
from stillbox.inputs.interpolation import crop_and_resize
from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Pixels, Sample

Flags = NDArray[np.bool_]
Doubles = NDArray[np.float64]

_WHOLE = np.array([0.0, 0.0, 1.0, 1.0])


@implements(SsdIouCrop)
def ssd_iou_crop(sample: Sample, settings: SsdIouCrop, rng: Generator) -> Sample:
    """Cuts the window out and resizes it, the whole image too, unless `resize_to` is empty.

    Boxes whose centre is outside go; the others are clipped to the window. The whole image leaves
    all boxes as they are.
    """
    size = sample.image.shape[0], sample.image.shape[1]
    window = draw_window(sample.boxes, size, settings, rng)
    if window is not None:
        sample = _move_boxes(sample, window)
    elif not settings.resize_to:
        return sample
    else:
        window = _WHOLE
    return replace(sample, image=_cut(sample.image, window, settings.resize_to))


def draw_window(
    boxes: NDArray[np.float32], size: Size, settings: SsdIouCrop, rng: Generator
) -> Doubles | None:
    """Draws a window as the head of this file says.

    Args:
        boxes: `[N, 4]`, normalised to the image.
        size: height and width of the image, in pixels. Without resizing windows end between pixels,
            rounded down, and are judged so.
        settings: of the operation.
        rng: source of the draws.

    Returns:
        `[4]`, normalised to the image; None for the whole image.
    """
    if not len(boxes):
        return None
    objects, grid = boxes.astype(np.float64), None if settings.resize_to else size
    for _ in range(settings.max_draws):
        if rng.random() < settings.whole_image_probability:
            return None
        min_iou = choose(settings.min_ious, rng)
        windows = _candidates(settings, grid, rng)
        valid = np.flatnonzero(_is_valid(windows, objects, min_iou, settings.max_aspect_ratio))
        if len(valid):
            window: Doubles = windows[valid[-1]]
            return window
    return None


def _candidates(settings: SsdIouCrop, grid: Size | None, rng: Generator) -> Doubles:
    """Returns `[M, 4]` windows, on a grid of whole pixels if there is one."""
    draws = rng.random((settings.candidates, 4))
    sides = settings.min_side + draws[:, :2] * (settings.max_side - settings.min_side)
    corner = draws[:, 2:] * (1 - sides)
    windows = np.concatenate([corner, corner + sides], axis=1)
    if grid is not None:
        windows = np.floor(windows * np.tile(grid, 2)) / np.tile(grid, 2)
    return windows


def _is_valid(windows: Doubles, boxes: Doubles, min_iou: float, max_aspect_ratio: float) -> Flags:
    """Returns `[M]`: which of the windows `[M, 4]` may be used with the boxes `[N, 4]`."""
    height, width = (windows[:, 2:] - windows[:, :2]).T
    # A window without a pixel, which whole pixels make possible, fails this too.
    is_even = (height < max_aspect_ratio * width) & (width < max_aspect_ratio * height)
    top_left = np.maximum(windows[:, None, :2], boxes[:, :2])
    bottom_right = np.minimum(windows[:, None, 2:], boxes[:, 2:])
    common = np.maximum(bottom_right - top_left, 0).prod(axis=2)
    union = (height * width)[:, None] + (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) - common
    overlaps = (common > min_iou * union).all(axis=1)
    return is_even & overlaps & _holds_centre(windows[:, None], boxes).any(axis=1)


def _holds_centre(window: Doubles, boxes: Doubles) -> Flags:
    """Returns which boxes `[N, 4]` have their centre inside: `[N]`, `[M, N]` for `[M, 1, 4]`."""
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    inside = (centre > window[..., :2]) & (centre < window[..., 2:])
    return inside[..., 0] & inside[..., 1]


def _move_boxes(sample: Sample, window: Doubles) -> Sample:
    start, stop = np.tile(window[:2], 2), np.tile(window[2:], 2)
    kept = sample.select(_holds_centre(window, sample.boxes.astype(np.float64)))
    boxes = (np.clip(kept.boxes, start, stop) - start) / (stop - start)
    return replace(kept, boxes=boxes.astype(np.float32))


def _cut(image: Pixels, window: Doubles, resize_to: tuple[int, ...]) -> Pixels:
    if resize_to:
        out = np.empty((*resize_to, 3), np.float32)
        crop_and_resize(image, window, out)
        return out
    # On the grid already: rounding only takes the division back.
    y, x, bottom, right = np.rint(window * np.tile(image.shape[:2], 2)).astype(int)
    return image[y:bottom, x:right]
