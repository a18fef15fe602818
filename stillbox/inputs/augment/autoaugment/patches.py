"""Gray patches that cover a part of the image or of an object."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.inputs.augment.autoaugment.warps import FILL
from stillbox.inputs.augment.draws import random_integer

Bytes = NDArray[np.uint8]


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
