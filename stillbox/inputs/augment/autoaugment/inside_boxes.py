"""Operations on the pixels of single boxes, as if each were an image (fact sheet 4)."""

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
    """Changes the pixels of some boxes, one after the other in random order.

    Where boxes overlap, a later one sees what was done to the earlier. Boxes stay where they are.

    Args:
        sample: image, uint8, and boxes.
        change: makes another image of the same size of a box's pixels.
        probability: how likely each box is to be changed.
        rng: gives order, choice, and what `change` draws.
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
