"""Crops and pads: random windows that cover enough of some object, and larger canvases.

The window is drawn like TensorFlow's `sample_distorted_bounding_box`, in whole pixels, with at
most 100 attempts:

1. The aspect ratio (width over height) is uniform in its range.
2. The height is a uniform integer between those that give the least and the greatest area, the
   latter reduced until height and width fit into the image. The width follows, rounded half to
   even. An area that rounding moved out of its range is corrected by one row, once.
3. The corner is uniform over the integers below the free space, its end excluded.
4. The window is accepted if it covers `min_object_covered` of at least one box. Boxes are clipped
   to the image and cut to whole pixels for this; those without a pixel do not count. An image
   without boxes is its own box.

If no attempt is accepted, the window is the whole image. The SSD forms that end at one aspect
ratio, width over height, crop first, as `ssd_random_crop`, then cut or pad the result.

`SsdIouCrop` has a least IoU with every box (arXiv:1512.02325, 2.2), as in MLPerf's SSD ResNet-34:

1. With `whole_image_probability` the window is the whole image. Otherwise a least IoU is drawn
   from `min_ious`, uniformly.
2. Height and width of every candidate are uniform between `min_side` and `max_side`, and its
   corner is uniform over the free space.
3. A candidate is valid if its IoU with every box is above the least one, the centre of at least
   one box is inside, and neither side reaches `max_aspect_ratio` times the other. Sides are shares
   of the image's. The last valid candidate is the window; all have the same distribution.

Without a valid candidate there is another draw. The original repeats without limit; here the window
is the whole image after `max_draws`, and at once for an image without boxes, of which the original
would end with the whole image only.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float64
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.common import (
    mean_color,
    move_boxes,
    paste_on_canvas,
    random_integer,
    uniform,
)
from stillbox.inputs.interpolation import crop_and_resize
from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Boxes, Doubles, Pixels, Sample, StoredSample

_ATTEMPTS = 100
T = TypeVar("T")


class CropWindow(NamedTuple):
    """A part of an image, in whole pixels; y and x are its first row and column."""

    y: int
    x: int
    height: int
    width: int


@implements(schema.RandomCropImage)
def random_crop_image(sample: Sample, config: schema.RandomCropImage, rng: Generator) -> Sample:
    """Crops to a random window, except with probability `random_coef`; see `crop`."""
    if rng.random() < config.random_coef:
        return sample
    height, width = sample.size
    window = sample_window(height, width, sample.boxes, config, rng)
    return crop(sample, window, config.overlap_thresh, clip=config.clip_boxes)


@implements(schema.SsdRandomCrop)
def ssd_random_crop(sample: Sample, config: schema.SsdRandomCrop, rng: Generator) -> Sample:
    """Applies one of several crops, each as likely as the others (arXiv:1512.02325, 2.2)."""
    return random_crop_image(sample, choose(config.operations, rng), rng)


def choose(options: Sequence[T], rng: Generator) -> T:
    """Returns one of several options, each as likely as the others."""
    return options[int(rng.random() * len(options))]


def crop(sample: Sample, window: CropWindow, overlap_thresh: float, *, clip: bool) -> Sample:
    """Cuts the window out and re-expresses the remaining boxes in its frame.

    A box goes if less than `overlap_thresh` of its area is inside, or none. `clip` ends the boxes
    at the window.
    """
    height, width = sample.size
    y, x, rows, columns = window
    frame = np.array([y, x, y + rows, x + columns]) / np.tile(np.array([height, width], float), 2)
    boxes = sample.boxes.astype(np.float64)
    inside = np.clip(boxes, np.tile(frame[:2], 2), np.tile(frame[2:], 2))
    outside = ((boxes[:, 2:] <= frame[:2]) | (boxes[:, :2] >= frame[2:])).any(axis=1)
    area = _areas(boxes)
    # Boxes without area are dropped, as in the original.
    keep = ~outside & (area > 0) & (_areas(inside) >= overlap_thresh * area)
    kept = sample.select(keep)
    start, sides = np.tile(frame[:2], 2), np.tile(frame[2:] - frame[:2], 2)
    moved = ((inside if clip else boxes)[keep] - start) / sides
    kept = replace(kept, boxes=moved.astype(np.float32))
    if isinstance(kept, StoredSample):
        return replace(kept, stored=kept.stored.crop(*window))
    return replace(kept, image=sample.image[y : y + rows, x : x + columns])


def sample_window(
    height: int, width: int, boxes: Boxes, config: schema.RandomCropImage, rng: Generator
) -> CropWindow:
    """Draws a window as described above; all attempts at once, in the same time for all images."""
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
    height: int,
    width: int,
    aspect: Float64[np.ndarray, " M"],
    draws: Float64[np.ndarray, " M"],
    config: schema.RandomCropImage,
) -> tuple[Float64[np.ndarray, " M"], Float64[np.ndarray, " M"], Bool[np.ndarray, " M"]]:
    """Returns height and width of each attempt, and whether they may be used."""
    least, most = config.min_area * height * width, config.max_area * height * width
    lowest = np.rint(np.sqrt(least / aspect))
    highest = np.rint(np.sqrt(most / aspect))
    # The greatest height with a rounded width that fits; one less if the division rounded up.
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


def _covers(
    windows: Float64[np.ndarray, "M 4"], objects: Float64[np.ndarray, "N 4"], least: float
) -> Bool[np.ndarray, " M"]:
    top_left = np.maximum(windows[:, None, :2], objects[:, :2])
    bottom_right = np.minimum(windows[:, None, 2:], objects[:, 2:])
    common = np.maximum(bottom_right - top_left, 0).prod(axis=2)
    area = _areas(objects)
    return ((area >= 1) & (common >= least * area)).any(axis=1)


def _areas(boxes: Float64[np.ndarray, "N 4"]) -> Float64[np.ndarray, " N"]:
    areas: Float64[np.ndarray, " N"] = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return areas


@implements(schema.RandomCropToAspectRatio)
def random_crop_to_aspect_ratio(
    sample: Sample, config: schema.RandomCropToAspectRatio, rng: Generator
) -> Sample:
    """Cuts the largest window of the aspect ratio, anywhere; it has full height or full width.

    The other side is rounded half to even. A box goes if less than `overlap_thresh` of its area is
    inside, or none.
    """
    height, width = sample.size
    rows, columns = height, width
    if width / height > config.aspect_ratio:
        columns = max(round(height * config.aspect_ratio), 1)
    else:
        rows = min(max(round(width / config.aspect_ratio), 1), height)
    y, x = random_integer(rng, 0, height - rows + 1), random_integer(rng, 0, width - columns + 1)
    window = CropWindow(y, x, rows, min(columns, width))
    return crop(sample, window, config.overlap_thresh, clip=config.clip_boxes)


@implements(schema.SsdRandomCropFixedAspectRatio)
def ssd_random_crop_fixed_aspect_ratio(
    sample: Sample, config: schema.SsdRandomCropFixedAspectRatio, rng: Generator
) -> Sample:
    """Applies one of several crops of this aspect ratio, then cuts to exactly it.

    The second cut changes an image if the first was skipped or found no window. It keeps boxes with
    0.3 of their area inside, and clips them.
    """
    ratio = config.aspect_ratio
    fields = asdict(choose(config.operations, rng))
    chosen = schema.RandomCropImage(min_aspect_ratio=ratio, max_aspect_ratio=ratio, **fields)
    cropped = random_crop_image(sample, chosen, rng)
    cut = schema.RandomCropToAspectRatio(aspect_ratio=ratio)
    return random_crop_to_aspect_ratio(cropped, cut, rng)


@implements(schema.SsdRandomCropPadFixedAspectRatio)
def ssd_random_crop_pad_fixed_aspect_ratio(
    sample: Sample, config: schema.SsdRandomCropPadFixedAspectRatio, rng: Generator
) -> Sample:
    """Applies one of several crops, then pads with black at the bottom and right.

    The smallest canvas of the aspect ratio that holds the window is scaled by a random factor, such
    that its sides are between `min_padded_size_ratio` and `max_padded_size_ratio` times the
    window's, if the aspect ratio allows it; otherwise the upper limit is met.
    """
    cropped = random_crop_image(sample, choose(config.operations, rng), rng)
    size = cropped.size
    window, ratio = np.array(size, np.float64), config.aspect_ratio
    smallest = np.maximum(window, [window[1] / ratio, window[0] * ratio])
    most = np.maximum(np.array(config.max_padded_size_ratio) * window, smallest)
    least = np.maximum(np.array(config.min_padded_size_ratio) * window, smallest)
    greatest = (most / smallest).min()
    scale = uniform(rng, min(greatest, (least / smallest).max()), greatest)
    # Rounding must not cut the window itself.
    height, width = np.maximum(np.rint(scale * smallest), window).astype(int).tolist()
    return replace(
        cropped,
        image=paste_on_canvas(cropped.image, (height, width), (0, 0), np.zeros(3, np.float32)),
        boxes=move_boxes(cropped.boxes, size, (0, 0), (height, width)),
    )


@implements(schema.RandomPadImage)
def random_pad_image(sample: Sample, config: schema.RandomPadImage, rng: Generator) -> Sample:
    """Puts the image at a random place on a random canvas, by default up to twice as large."""
    height, width = sample.image.shape[:2]
    least = config.min_height or height, config.min_width or width
    most = config.max_height or 2 * height, config.max_width or 2 * width
    return pad_between(sample, least, most, config.pad_color, rng)


@implements(schema.RandomAbsolutePadImage)
def random_absolute_pad_image(
    sample: Sample, config: schema.RandomAbsolutePadImage, rng: Generator
) -> Sample:
    """Adds a random number of rows and columns, divided at random between the sides."""
    height, width = sample.image.shape[:2]
    most = height + config.max_height_padding, width + config.max_width_padding
    return pad_between(sample, (height, width), most, config.pad_color, rng)


@implements(schema.RandomCropPadImage)
def random_crop_pad_image(
    sample: Sample, config: schema.RandomCropPadImage, rng: Generator
) -> Sample:
    """Crops or, with `random_coef`, does not; then pads relative to the size before the crop."""
    height, width = sample.image.shape[:2]
    cropped = random_crop_image(sample, config, rng)
    least, most = (
        (int(ratio[0] * height), int(ratio[1] * width))
        for ratio in (config.min_padded_size_ratio, config.max_padded_size_ratio)
    )
    return pad_between(cropped, least, most, config.pad_color, rng)


@implements(schema.SsdRandomCropPad)
def ssd_random_crop_pad(sample: Sample, config: schema.SsdRandomCropPad, rng: Generator) -> Sample:
    """Applies one of several crops with padding, chosen uniformly."""
    return random_crop_pad_image(sample, choose(config.operations, rng), rng)


def pad_between(
    sample: Sample, least: Size, most: Size, pad_color: tuple[float, ...], rng: Generator
) -> Sample:
    """Pads to a random size between `least` and `most`, the latter excluded.

    As in the original, the last position is never drawn either; sizes of the image that are above
    `least` or `most` replace them. An empty `pad_color` is the image's mean.
    """
    size = sample.size
    height, width = (
        random_integer(rng, max(low, side), max(high, side))
        if max(high, side) > max(low, side)
        else max(high, side)
        for low, high, side in zip(least, most, size, strict=True)
    )
    y, x = random_integer(rng, 0, height - size[0]), random_integer(rng, 0, width - size[1])
    color = np.array(pad_color, np.float32) if pad_color else mean_color(sample.image)
    return replace(
        sample,
        image=paste_on_canvas(sample.image, (height, width), (y, x), color),
        boxes=move_boxes(sample.boxes, size, (-y, -x), (height, width)),
    )


Window = Float64[np.ndarray, "4"]
"""ymin, xmin, ymax, xmax, normalised to the image."""

_WHOLE = np.array([0.0, 0.0, 1.0, 1.0])


@implements(schema.SsdIouCrop)
def ssd_iou_crop(sample: Sample, config: schema.SsdIouCrop, rng: Generator) -> Sample:
    """Cuts the window out and resizes it, the whole image too, unless `resize_to` is empty.

    Boxes with their centre outside go; the others are clipped to the window. The whole image leaves
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
        out = np.empty((*resize_to, image.shape[2]), np.float32)
        crop_and_resize(image, window, out)
        return out
    # On the grid already: rounding only undoes the division.
    y, x, bottom, right = np.rint(window * np.tile(image.shape[:2], 2)).astype(int)
    return image[y:bottom, x:right]
