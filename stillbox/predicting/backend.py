"""What runs a model for a predictor: a checkpoint's own program, or an exported artefact."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
"""`[h, w, 3]`, RGB."""


class Prepared(NamedTuple):
    """One image as a backend takes it. Making it is the host's work, and needs no device."""

    pixels: NDArray[np.float32] | NDArray[np.uint8]
    """`[H, W, 3]`: of the one size that the backend takes, or the image itself."""
    true_size: tuple[int, int]
    """Height and width of the image proper inside `pixels`; the rest is padding."""
    size: tuple[int, int]
    """Height and width of the image as it was given, in pixels."""


class Found(NamedTuple):
    """N detections in one image, best first."""

    boxes: NDArray[np.float64]
    """`[N, 4]`, `[ymin, xmin, ymax, xmax]` in pixels of the image as it was given."""
    scores: NDArray[np.float64]
    """`[N]`."""
    class_ids: NDArray[np.int64]
    """`[N]`, label map ids."""


class Backend(Protocol):
    """Runs a detector on batches of fixed size. Both methods may be called from any thread."""

    @property
    def class_names(self) -> Mapping[int, str]:
        """Names for people by label map id."""
        ...

    @property
    def source(self) -> str:
        """Where the model comes from, for people."""
        ...

    @property
    def batch_sizes(self) -> tuple[int, ...] | None:
        """The only sizes that `run` takes; None: any, and each new one compiles a program."""
        ...

    @property
    def max_detections(self) -> int:
        """The most detections that it finds in an image."""
        ...

    def prepare(self, image: Pixels, where: str | None = None) -> Prepared:
        """Resizes an image as the model wants it.

        Args:
            image: `[h, w, 3]`.
            where: what an error calls the image.

        Raises:
            UserError: the image is larger than the canvas of a resizer that does not shrink.
        """
        ...

    def run(self, images: Sequence[Prepared]) -> list[Found]:
        """Detects in as many images as the batch has rows."""
        ...
