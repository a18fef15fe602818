"""One decoded image with its boxes."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stillbox.inputs.stored import Size, StoredImage

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Pixels = Bytes | Floats
"""`[h, w, 3]` RGB in 0..255. uint8 as decoded; float32 once an operation has changed values."""

_PER_BOX = ("boxes", "class_ids", "weights")


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

    @property
    def size(self) -> Size:
        """Height and width of the image in pixels."""
        return self.image.shape[0], self.image.shape[1]

    def decoded(self) -> "Sample":
        """Returns the sample with its pixels; see `StoredSample`."""
        return self

    def select(self, keep: NDArray[np.bool_] | NDArray[np.intp]) -> "Sample":
        """Returns the sample with the boxes of a mask `[N]`, or of indices, which may repeat."""
        return replace(self, **{name: getattr(self, name)[keep] for name in _PER_BOX})

    @property
    def nbytes(self) -> int:
        """Bytes that all its arrays take."""
        return sum(int(getattr(self, name).nbytes) for name in ("image", *_PER_BOX))


@dataclass(frozen=True)
class StoredSample(Sample):
    """A sample of a JPEG file that is not decoded yet; `image` has no pixels."""

    stored: StoredImage
    """The image, as the operations so far have left it."""

    @property
    def size(self) -> Size:
        """Height and width of the image in pixels."""
        return self.stored.size

    def decoded(self) -> Sample:
        """Returns the sample with its pixels.

        Raises:
            ImageError: the file is truncated or corrupt.
        """
        return Sample(self.stored.pixels(), *(getattr(self, name) for name in _PER_BOX))
