"""What several augmentations need: random numbers, other records, frames of boxes, canvases."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast, runtime_checkable

import cv2
import numpy as np
from jaxtyping import Float32, Float64
from numpy.random import Generator
from numpy.typing import DTypeLike

from stillbox.experiment import schema
from stillbox.image_kind import per_channel
from stillbox.inputs.channels import with_channels
from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Boxes, Pixels, Sample


@runtime_checkable
class Partners(Protocol):
    """The records that an image can be combined with."""

    def draw(self, rng: Generator, *, with_boxes: bool = False) -> Sample | None:
        """Returns a decoded record; None if no usable one was found."""


def uniform(rng: Generator, low: float, high: float) -> float:
    """Returns a number in `[low, high)`."""
    return between(low, high, float(rng.random()))


def between(low: float, high: float, draw: float) -> float:
    """Returns the number in `[low, high)` that a draw from `[0, 1)` stands for."""
    return low + draw * (high - low)


def random_integer(rng: Generator, low: int, high: int) -> int:
    """Returns one of `low, ..., high - 1`, uniformly; `low` if the range is empty."""
    return low + int(rng.random() * max(high - low, 1))


def is_skipped(rng: Generator, random_coef: float) -> bool:
    """Returns whether an operation skips this image, with probability `random_coef`."""
    return float(rng.random()) < random_coef


def move_boxes(boxes: Boxes, size: Size, corner: Size, frame: Size) -> Boxes:
    """Returns boxes, normalised to an image of `size`, normalised to a frame instead.

    The frame begins at the row and column `corner` of the image, which may be negative, and has the
    size `frame`, in pixels of the image.
    """
    scale, start = np.tile(np.array(size, np.float64), 2), np.tile(np.array(corner), 2)
    moved = (boxes.astype(np.float64) * scale - start) / np.tile(np.array(frame), 2)
    return moved.astype(np.float32)


def keep_inside(sample: Sample) -> Sample:
    """Drops boxes that lie completely outside the image and clips the others to it."""
    ymin, xmin, ymax, xmax = sample.boxes.T
    inside = (ymax > 0) & (xmax > 0) & (ymin < 1) & (xmin < 1)
    kept = sample.select(inside)
    return replace(kept, boxes=np.clip(kept.boxes, 0, 1))


def paste_on_canvas(
    image: Pixels, size: Size, corner: Size, color: Sequence[float] | Float32[np.ndarray, " C"]
) -> Pixels:
    """Returns a canvas of one colour with the image at the row and column `corner`."""
    pixels = blank_canvas(size, color, image.dtype, image.shape[2])
    y, x = corner
    pixels[y : y + image.shape[0], x : x + image.shape[1]] = image
    return pixels


def blank_canvas(
    size: Size,
    color: Sequence[float] | Float32[np.ndarray, " C"],
    dtype: DTypeLike,
    channels: int = 3,
) -> Pixels:
    """Returns a canvas of `size` and one colour, rounded for uint8; see `per_channel`."""
    values = np.asarray(per_channel(list(color), channels), np.float32)
    if np.dtype(dtype) == np.uint8:
        values = np.rint(values).clip(0, 255)
    # By rows: numpy copies rows at memory speed, but a colour pixel by pixel.
    row = np.tile(values.astype(dtype), size[1])
    canvas = np.empty((size[0], channels * size[1]), dtype)
    canvas[:] = row
    return cast(Pixels, canvas.reshape(*size, channels))


def fit_image(image: Pixels, size: Size) -> tuple[Pixels, float]:
    """Returns the image fitted into `size` as by mmcv's `imresize`, and the unrounded factor."""
    ratio = min(size[0] / image.shape[0], size[1] / image.shape[1])
    height, width = (max(int(side * ratio), 1) for side in image.shape[:2])
    return with_channels(cv2.resize(image, (width, height))), ratio


def in_pixels(sample: Sample) -> Float64[np.ndarray, "N 4"]:
    """Returns the boxes of a sample in pixels of its image."""
    return sample.boxes.astype(np.float64) * np.tile(np.array(sample.size, np.float64), 2)


def joined(samples: Sequence[Sample]) -> Sample:
    """Returns the first sample with the boxes of all, in their order."""
    return replace(
        samples[0],
        boxes=np.concatenate([sample.boxes for sample in samples]),
        class_ids=np.concatenate([sample.class_ids for sample in samples]),
        weights=np.concatenate([sample.weights for sample in samples]),
    )


def keep_overlapping(
    sample: Sample,
    boxes: Float64[np.ndarray, "N 4"],
    window: Size,
    config: schema.StrongAugmentation,
    frame: Size | None = None,
) -> Sample:
    """Returns the sample with moved boxes, without those outside a window and those too small.

    `boxes` are in pixels of the window. They are normalised to the size `frame`, which begins where
    the window does; None: the window.
    """
    if config.clip_boxes:
        boxes = np.clip(boxes, 0, np.tile(window, 2))
    inside = (boxes[:, :2] < window) & (boxes[:, 2:] > 0)
    large = boxes[:, 2:] - boxes[:, :2] > config.min_box_side
    keep = (inside & large).all(axis=1)
    normalised = boxes[keep] / np.tile(frame or window, 2)
    return replace(sample.select(keep), boxes=normalised.astype(np.float32))


def mean_color(image: Pixels) -> Float32[np.ndarray, " C"]:
    """Returns the mean of each channel."""
    # Many times faster than numpy's mean over the outer axes, and also in float64.
    return np.array(cv2.mean(image)[: image.shape[2]], np.float32)
