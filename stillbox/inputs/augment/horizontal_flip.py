"""Mirroring (fact sheet 1.4)."""

from dataclasses import replace
from typing import cast

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.experiment.schema import RandomHorizontalFlip
from stillbox.inputs.sample import Sample


def random_horizontal_flip(
    sample: Sample, settings: RandomHorizontalFlip, rng: Generator
) -> Sample:
    """Mirrors image and boxes with the given probability; 0 never does, 1 always."""
    if rng.random() >= settings.probability:
        return sample
    return replace(
        sample,
        # A view with a negative stride would be free, but OpenCV takes none.
        image=cast(NDArray[np.uint8], cv2.flip(sample.image, 1)),
        boxes=flip_boxes(sample.boxes),
    )


def flip_boxes(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mirrors boxes `[N, 4]`: `(ymin, xmin, ymax, xmax)` to `(ymin, 1 - xmax, ymax, 1 - xmin)`."""
    ymin, xmin, ymax, xmax = boxes.T
    return np.stack([ymin, 1 - xmax, ymax, 1 - xmin], axis=1)
