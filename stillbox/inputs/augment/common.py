"""What several augmentations need: the original's random numbers, frames of boxes, canvases."""

from dataclasses import replace

import cv2
import numpy as np
from jaxtyping import Float32
from numpy.random import Generator

from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Boxes, Pixels, Sample


def uniform(rng: Generator, low: float, high: float) -> float:
    """Returns a number in `[low, high)`."""
    return low + float(rng.random()) * (high - low)


def random_integer(rng: Generator, low: int, high: int) -> int:
    """Returns one of `low, ..., high - 1`, uniformly; `low` if the range is empty.

    The original fails on an empty range.
    """
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
    image: Pixels, size: Size, corner: Size, color: Float32[np.ndarray, "3"]
) -> Pixels:
    """Returns a canvas of `size` and one colour, rounded for uint8, with the image on it.

    `corner` is row and column of the image's first pixel on the canvas. The image must fit.
    """
    if image.dtype == np.uint8:
        color = np.rint(color).clip(0, 255)
    # By rows: numpy copies rows at memory speed, but a colour pixel by pixel.
    row = np.tile(color.astype(image.dtype), size[1])
    canvas = np.empty((size[0], 3 * size[1]), image.dtype)
    canvas[:] = row
    pixels: Pixels = canvas.reshape(*size, 3)
    y, x = corner
    pixels[y : y + image.shape[0], x : x + image.shape[1]] = image
    return pixels


def mean_color(image: Pixels) -> Float32[np.ndarray, "3"]:
    """Returns the mean of each channel."""
    # Many times faster than numpy's mean over the outer axes, and also in float64.
    return np.array(cv2.mean(image)[:3], np.float32)
