"""One decoded image with its boxes, between the decoder and the batch."""

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8] | NDArray[np.float32]
"""`[h, w, 3]` RGB in 0..255. uint8 as decoded; float32 once an operation has changed values."""


@dataclass(frozen=True)
class Sample:
    """An image and its N boxes. Nobody writes into the arrays: they may belong to the cache."""

    image: Pixels
    """`[h, w, 3]` RGB."""
    boxes: NDArray[np.float32]
    """`[N, 4]`, normalised to `image`."""
    class_ids: NDArray[np.int32]
    """`[N]`, label map ids. They become class indices in the batch."""
    weights: NDArray[np.float32]
    """`[N]`, 0 for boxes that matcher and loss ignore."""

    def select(self, keep: NDArray[np.bool_] | NDArray[np.intp]) -> "Sample":
        """Returns the sample with only those boxes, and everything that belongs to them.

        Args:
            keep: `[N]` yes or no, or indices, which may repeat.
        """
        per_box = (field.name for field in fields(self) if field.name != "image")
        return replace(self, **{name: getattr(self, name)[keep] for name in per_box})

    @property
    def nbytes(self) -> int:
        """Bytes that all its arrays take."""
        return sum(int(getattr(self, field.name).nbytes) for field in fields(self))
