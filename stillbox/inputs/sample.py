"""One decoded image with its boxes, between the decoder and the batch."""

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Sample:
    """An image and its N boxes. Nobody writes into the arrays: they may belong to the cache."""

    image: NDArray[np.uint8]
    """`[h, w, 3]` RGB."""
    boxes: NDArray[np.float32]
    """`[N, 4]`, normalised to `image`."""
    classes: NDArray[np.int32]
    """`[N]`, class indices that start at 0."""
    weights: NDArray[np.float32]
    """`[N]`, 0 for boxes that matcher and loss ignore."""

    def select(self, keep: NDArray[np.bool_]) -> "Sample":
        """Returns the sample with only those boxes, and everything that belongs to them.

        Args:
            keep: `[N]`.
        """
        per_box = (field.name for field in fields(self) if field.name != "image")
        return replace(self, **{name: getattr(self, name)[keep] for name in per_box})

    @property
    def nbytes(self) -> int:
        """Bytes that all its arrays take."""
        return sum(int(getattr(self, field.name).nbytes) for field in fields(self))
