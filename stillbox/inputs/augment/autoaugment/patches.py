"""Gray patches, and operations on the pixels of single boxes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.inputs.augment.autoaugment.warps import FILL
from stillbox.inputs.augment.draws import random_integer
from stillbox.inputs.sample import Bytes, Sample

Change = Callable[[Bytes, Generator], Bytes]


def cutout(image: Bytes, half: int, rng: Generator) -> Bytes:
    """Covers a square of `2 * half` pixels about a random pixel; it may stick out."""
    y, x = (random_integer(rng, 0, length) for length in image.shape[:2])
    return _covered(image, (y, x), (half, half))


def cutout_at_a_box(
    image: Bytes, boxes: NDArray[np.float32], share: float, rng: Generator
) -> Bytes:
    """Covers a patch about a random pixel of a random one of the boxes `[N, 4]`, if any.

    Its sides are `share` of the box's; half the sides are truncated to whole pixels.
    """
    if not len(boxes):
        return image
    rows, columns = box_pixels(boxes[random_integer(rng, 0, len(boxes))], image)
    halves = (
        int(share * ((rows.stop - rows.start) / 2)),
        int(share * ((columns.stop - columns.start) / 2)),
    )
    y = random_integer(rng, rows.start, rows.stop)
    x = random_integer(rng, columns.start, columns.stop)
    return _covered(image, (y, x), halves)


def change_inside_boxes(
    sample: Sample, change: Change, probability: float, rng: Generator
) -> Sample:
    """Changes the pixels of some boxes of a uint8 image, one after the other in random order.

    If boxes overlap, a later one gets the changed pixels of the earlier. Boxes do not move.

    Args:
        sample: image and boxes.
        change: from a box's pixels to others of the same shape.
        probability: of each box to be changed.
        rng: source of order, choice, and the numbers of `change`.
    """
    count = len(sample.boxes)
    order, chosen = np.argsort(rng.random(count)), rng.random(count) + probability >= 1
    image = sample.image.astype(np.uint8)
    for index in order[chosen[order]]:
        rows, columns = box_pixels(sample.boxes[index], image)
        content = np.ascontiguousarray(image[rows, columns])
        if content.size:
            image[rows, columns] = change(content, rng)
    return replace(sample, image=image)


def box_pixels(box: NDArray[np.float32], image: Bytes) -> tuple[slice, slice]:
    """Returns rows and columns of a box: corners truncated to whole pixels, the last one included.

    A box that ends at the image's edge reaches one pixel beyond it.
    """
    height, width = (np.float32(length) for length in image.shape[:2])
    ymin, xmin, ymax, xmax = box
    return (
        slice(int(height * ymin), int(height * ymax) + 1),
        slice(int(width * xmin), int(width * xmax) + 1),
    )


def _covered(image: Bytes, center: tuple[int, int], halves: tuple[int, int]) -> Bytes:
    (y, x), (rows, columns) = center, halves
    result = image.copy()
    result[max(y - rows, 0) : y + rows, max(x - columns, 0) : x + columns] = FILL
    return result
