"""Gray patches that hide a part of the image or of an object (fact sheet 4)."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.inputs.augment.autoaugment.warps import FILL
from stillbox.inputs.augment.draws import whole_number

Bytes = NDArray[np.uint8]


def cutout(image: Bytes, half: int, rng: Generator) -> Bytes:
    """Covers a square of `2 * half` pixels about a random pixel; it may stick out."""
    y, x = (whole_number(rng, 0, length) for length in image.shape[:2])
    return _covered(image, (y, x), (half, half))


def cutout_at_a_box(
    image: Bytes, boxes: NDArray[np.float32], share: float, rng: Generator
) -> Bytes:
    """Covers a patch about a random pixel of a random box, `share` of the box's height and width.

    Half the sides are cut to whole pixels. Without boxes the image stays as it is.

    Args:
        image: `[h, w, 3]`.
        boxes: `[N, 4]`, normalised.
        share: sides of the patch, relative to the box's.
        rng: three numbers are drawn.
    """
    if not len(boxes):
        return image
    rows, columns = box_pixels(boxes[whole_number(rng, 0, len(boxes))], image)
    halves = (
        int(share * ((rows.stop - rows.start) / 2)),
        int(share * ((columns.stop - columns.start) / 2)),
    )
    y = whole_number(rng, rows.start, rows.stop)
    x = whole_number(rng, columns.start, columns.stop)
    return _covered(image, (y, x), halves)


def box_pixels(box: NDArray[np.float32], image: Bytes) -> tuple[slice, slice]:
    """Returns the rows and columns of a box: corners cut to whole pixels, the last one included.

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
