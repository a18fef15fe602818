"""Flips, rotations by 90 degrees, concatenations, resizing, square crops; boxes and classes alone.

Resizing leaves normalised boxes as they are, interpolates as TF1 and returns float32. Square
crops are padded with black.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import cv2
import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.rules.boxes import named_labels
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.common import (
    is_skipped,
    keep_inside,
    move_boxes,
    paste_on_canvas,
    random_integer,
    uniform,
)
from stillbox.inputs.channels import with_channels
from stillbox.inputs.decode import FloatPixels
from stillbox.inputs.interpolation import METHODS
from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Boxes, Pixels, Sample, StoredSample
from stillbox.records.label_map import ClassSlots


@implements(schema.RandomHorizontalFlip)
def random_horizontal_flip(
    sample: Sample, config: schema.RandomHorizontalFlip, rng: Generator
) -> Sample:
    """Mirrors image and boxes with the given probability; 0 never does, 1 always."""
    if isinstance(sample, StoredSample):
        if rng.random() >= config.probability:
            return sample
        return replace(sample, stored=sample.stored.mirror(), boxes=flip_boxes(sample.boxes))
    return _with_probability(sample, config.probability, rng, lambda p: cv2.flip(p, 1), flip_boxes)


@implements(schema.RandomVerticalFlip)
def random_vertical_flip(
    sample: Sample, config: schema.RandomVerticalFlip, rng: Generator
) -> Sample:
    """Turns image and boxes upside down with the given probability."""
    return _with_probability(
        sample, config.probability, rng, lambda p: cv2.flip(p, 0), _flip_boxes_vertically
    )


@implements(schema.RandomRotation90)
def random_rotation90(sample: Sample, config: schema.RandomRotation90, rng: Generator) -> Sample:
    """Turns image and boxes by 90 degrees against the clock with the given probability."""
    return _with_probability(
        sample,
        config.probability,
        rng,
        lambda pixels: cv2.rotate(pixels, cv2.ROTATE_90_COUNTERCLOCKWISE),
        _rotate_boxes,
    )


def flip_boxes(boxes: Boxes) -> Boxes:
    """Mirrors boxes: `(ymin, xmin, ymax, xmax)` becomes `(ymin, 1 - xmax, ymax, 1 - xmin)`."""
    ymin, xmin, ymax, xmax = boxes.T
    return np.stack([ymin, 1 - xmax, ymax, 1 - xmin], axis=1)


def _flip_boxes_vertically(boxes: Boxes) -> Boxes:
    ymin, xmin, ymax, xmax = boxes.T
    return np.stack([1 - ymax, xmin, 1 - ymin, xmax], axis=1)


def _rotate_boxes(boxes: Boxes) -> Boxes:
    # The right edge becomes the top one.
    ymin, xmin, ymax, xmax = boxes.T
    return np.stack([1 - xmax, ymin, 1 - xmin, ymax], axis=1)


def _with_probability(
    sample: Sample,
    probability: float,
    rng: Generator,
    move_pixels: Callable[[Pixels], np.ndarray],
    move_boxes: Callable[[Boxes], Boxes],
) -> Sample:
    if rng.random() >= probability:
        return sample
    # Not a view with a negative stride, which OpenCV does not accept later.
    image = with_channels(move_pixels(sample.image))
    return replace(sample, image=image, boxes=move_boxes(sample.boxes))


@implements(schema.RandomSelfConcatImage)
def random_self_concat_image(
    sample: Sample, config: schema.RandomSelfConcatImage, rng: Generator
) -> Sample:
    """Doubles the image downwards, then sideways, each with its own probability.

    In the list the copy's boxes follow the original's.
    """
    below = rng.random() < config.vertical_probability
    beside = rng.random() < config.horizontal_probability
    for axis, doubled in ((0, below), (1, beside)):
        if doubled:
            sample = _double(sample, axis)
    return sample


def _double(sample: Sample, axis: int) -> Sample:
    shrink = np.ones(4, np.float32)
    shrink[axis::2] = 0.5
    first = sample.boxes * shrink
    twice = sample.select(np.tile(np.arange(len(sample.boxes)), 2))
    return replace(
        twice,
        image=np.concatenate([sample.image, sample.image], axis=axis),
        boxes=np.concatenate([first, first + (1 - shrink)]),
    )


# In the order of TF1's ResizeMethod.
_METHODS = ("bilinear", "nearest", "bicubic", "area")


@implements(schema.RandomImageScale)
def random_image_scale(sample: Sample, config: schema.RandomImageScale, rng: Generator) -> Sample:
    """Scales by a random factor; sides are cut to whole pixels, corner pixels coincide."""
    scale = uniform(rng, config.min_ratio, config.max_ratio)
    height, width = (max(int(side * scale), 1) for side in sample.image.shape[:2])
    return replace(sample, image=resized(sample.image, (height, width), align_corners=True))


@implements(schema.RandomResizeMethod)
def random_resize_method(
    sample: Sample, config: schema.RandomResizeMethod, rng: Generator
) -> Sample:
    """Stretches to one size with bilinear, nearest, bicubic or area, each as likely."""
    method = _METHODS[random_integer(rng, 0, len(_METHODS))]
    size = config.height, config.width
    return replace(sample, image=resized(sample.image, size, method))


@implements(schema.ResizeImage)
def resize_image(sample: Sample, config: schema.ResizeImage, rng: Generator) -> Sample:
    """Stretches to one size. Nothing is random."""
    size = config.height, config.width
    return replace(sample, image=resized(sample.image, size, config.method))


@implements(schema.RandomDownscaleToTargetPixels)
def random_downscale_to_target_pixels(
    sample: Sample, config: schema.RandomDownscaleToTargetPixels, rng: Generator
) -> Sample:
    """Shrinks an image with more pixels than a random number to about that number.

    Sides are cut to whole pixels. Smaller images, and a share of `random_coef`, stay as they are.
    """
    if is_skipped(rng, config.random_coef):
        return sample
    target = random_integer(rng, config.min_target_pixels, config.max_target_pixels)
    height, width = sample.image.shape[:2]
    if height * width <= target:
        return sample
    scale = math.sqrt(target / (height * width))
    size = max(int(height * scale), 1), max(int(width * scale), 1)
    return replace(sample, image=resized(sample.image, size))


def resized(
    image: Pixels, size: Size, method: str = "bilinear", *, align_corners: bool = False
) -> FloatPixels:
    """Returns the image at another size."""
    out = np.empty((*size, image.shape[2]), np.float32)
    METHODS[method](image, out, align_corners=align_corners)
    return out


_BLACK = np.zeros(3, np.float32)


@implements(schema.RandomSquareCropByScale)
def random_square_crop_by_scale(
    sample: Sample, config: schema.RandomSquareCropByScale, rng: Generator
) -> Sample:
    """Cuts a square around a random centre (CenterNet, arXiv:1904.07850).

    Its side is the long side of the image times one of `num_scales` factors. The centre keeps a
    border from the edges. Drops boxes completely outside and clips the others. The original omits
    the image's last row and column; this does not.
    """
    height, width = sample.image.shape[:2]
    scales = np.linspace(config.min_scale, config.max_scale, config.num_scales)
    side = max(int(scales[random_integer(rng, 0, config.num_scales)] * max(height, width)), 1)
    y = _centre(height, config.max_border, rng) - side // 2
    x = _centre(width, config.max_border, rng) - side // 2
    top, left = max(y, 0), max(x, 0)
    part = sample.image[top : y + side, left : x + side]
    moved = replace(
        sample,
        image=paste_on_canvas(part, (side, side), (top - y, left - x), _BLACK),
        boxes=move_boxes(sample.boxes, (height, width), (y, x), (side, side)),
    )
    return keep_inside(moved)


def _centre(side: int, max_border: int, rng: Generator) -> int:
    divisor = 2 ** math.ceil(math.log2(2 * max_border / side))
    border = max_border // int(min(max(divisor, 1), max_border))
    # Only for a single row or column the border is beyond the middle.
    border = min(border, side // 2)
    return random_integer(rng, border, side - border + 1)


@implements(schema.RandomScaleCropAndPadToSquare)
def random_scale_crop_and_pad_to_square(
    sample: Sample, config: schema.RandomScaleCropAndPadToSquare, rng: Generator
) -> Sample:
    """Scales at random, then cuts or pads with black to a square (EfficientDet, arXiv:1911.09070).

    The long side becomes a random factor times `output_size`, and both sides are cut to whole
    pixels. What is longer than `output_size` is cut at a random place; what is shorter is padded at
    the bottom and right. Boxes completely outside go, the others are clipped.
    """
    height, width = sample.image.shape[:2]
    side = config.output_size
    long_side = uniform(rng, config.min_scale, config.max_scale) * side
    rows, columns = (
        max(int(long_side * length / max(height, width)), 1) for length in (height, width)
    )
    y, x = (int(max(length - side, 0) * rng.random()) for length in (rows, columns))
    part = resized(sample.image, (rows, columns))[y : y + side, x : x + side]
    moved = replace(
        sample,
        image=paste_on_canvas(part, (side, side), (0, 0), _BLACK),
        boxes=move_boxes(sample.boxes, (rows, columns), (y, x), (side, side)),
    )
    return keep_inside(moved)


# A box without height or width grows from this, as in the original.
_LEAST_SIDE = 1e-6


@implements(schema.RandomJitterBoxes)
def random_jitter_boxes(sample: Sample, config: schema.RandomJitterBoxes, rng: Generator) -> Sample:
    """Multiplies the distance of every edge from the centre by a random factor; clips to 0..1.

    The factor is uniform in `1 - ratio .. 1 + ratio`, with `expand` in `1 .. 1 + ratio`, with
    `shrink` in `1 - ratio .. 1`. Every edge has its own, with `symmetric` every axis, with
    `symmetric_xy` every box. A symmetric factor ends where the box would leave the image, so that
    the centre stays.
    """
    low = 1 - config.ratio * (not config.mode.startswith("expand"))
    high = 1 + config.ratio * (not config.mode.startswith("shrink"))
    # Four numbers for a box in every mode, so that later operations draw the same numbers.
    factors = low + rng.random((len(sample.boxes), 4)) * (high - low)
    boxes = sample.boxes.astype(np.float64)
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    half = np.maximum(boxes[:, 2:] - boxes[:, :2], _LEAST_SIDE) / 2
    room = np.abs(np.minimum(centre, 1 - centre)) / half
    if config.mode.endswith("symmetric"):
        factors = np.tile(np.minimum(factors[:, :2], room), 2)
    elif config.mode.endswith("symmetric_xy"):
        factors = np.minimum(factors[:, :1], room.min(axis=1, keepdims=True))
    moved = np.tile(centre, 2) + np.tile(half, 2) * [-1, -1, 1, 1] * factors
    return replace(sample, boxes=np.clip(moved, 0, 1).astype(np.float32))


@implements(schema.DropLabelProbabilistically)
def drop_label_probabilistically(
    sample: Sample, config: schema.DropLabelProbabilistically, rng: Generator
) -> Sample:
    """Drops boxes of one class, each with the given probability on its own."""
    kept = rng.random(len(sample.class_ids)) >= config.probability
    return sample.select(kept | (sample.class_ids != config.label))


@implements(schema.RemapLabels)
def remap_labels(sample: Sample, config: schema.RemapLabels, rng: Generator) -> Sample:
    """Gives the boxes of some classes another class. Nothing is random."""
    changed = np.isin(sample.class_ids, np.array(config.original_labels, np.int32))
    class_ids = np.where(changed, np.int32(config.new_label), sample.class_ids)
    return replace(sample, class_ids=class_ids)


def labels_without_slots(
    augmentations: Sequence[schema.Augmentation], slots: ClassSlots
) -> Iterator[tuple[str, str]]:
    """Yields path and message for fields that name a class which the model does not have."""
    for path, class_ids in named_labels(augmentations):
        unknown = [class_id for class_id in class_ids if class_id not in slots]
        if unknown:
            yield path, f"there is no class {unknown[0]}: the model has ids {slots}"
