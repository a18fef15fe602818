"""Images for runs of the originals, which tests draw again: several tools and tests use them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def drawn_images(seed: int, count: int, side: int) -> NDArray[Any]:
    """Returns images `[count, side, side, 3]` of waves and patches, in 0..255, as float64."""
    rng = np.random.RandomState(seed)
    y, x = np.meshgrid(np.arange(side) / side, np.arange(side) / side, indexing="ij")
    images = np.zeros((count, side, side, 3))
    for image in images:
        for channel in range(3):
            a, b, p, q = rng.uniform(0, 40, 4)
            image[..., channel] = 128 + 100 * np.sin(a * y + p) * np.cos(b * x + q)
        for _ in range(6):
            top, left, height, width = rng.randint(8, side // 2, 4)
            image[top : top + height, left : left + width] = rng.uniform(0, 255, 3)
    return images
