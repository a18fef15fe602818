"""Operations on the pixels of single boxes, each as an image of its own."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.inputs.augment.autoaugment.patches import box_pixels
from stillbox.inputs.sample import Sample

Bytes = NDArray[np.uint8]
Change = Callable[[Bytes, Generator], Bytes]


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
