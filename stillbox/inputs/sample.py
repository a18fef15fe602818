"""One decoded image with its boxes."""

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Pixels = Bytes | Floats
"""`[h, w, 3]` RGB in 0..255. uint8 as decoded; float32 once an operation has changed values."""


@dataclass(frozen=True)
class Sample:
    """An image and its N boxes. The arrays are read-only: they may belong to the cache."""

    image: Pixels
    """`[h, w, 3]` RGB."""
    boxes: NDArray[np.float32]
    """`[N, 4]`, normalised to `image`."""
    class_ids: NDArray[np.int32]
    """`[N]`, label map ids; a batch has class indices."""
    weights: NDArray[np.float32]
    """`[N]`, 0 for ignored boxes."""

    def select(self, keep: NDArray[np.bool_] | NDArray[np.intp]) -> "Sample":
        """Returns the sample with the boxes of a mask `[N]`, or of indices, which may repeat."""
        per_box = (field.name for field in fields(self) if field.name != "image")
        return replace(self, **{name: getattr(self, name)[keep] for name in per_box})

    @property
    def nbytes(self) -> int:
        """Bytes that all its arrays take."""
        return sum(int(getattr(self, field.name).nbytes) for field in fields(self))
