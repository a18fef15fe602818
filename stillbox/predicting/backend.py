"""The interface between a predictor and a checkpoint's program or an exported artefact."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stillbox.evaluation.results import RawDetections
from stillbox.evaluation.tiling import Tiling
from stillbox.image_kind import ImageKind

Pixels = NDArray[np.uint8 | np.float32]
"""`[h, w, C]` in 0..255, RGB if there are three channels; uint8 if images have 8 bits."""


class Prepared(NamedTuple):
    """One image as input of a backend, prepared on the host."""

    pixels: Pixels
    """`[H, W, C]`: of the backend's input size, or the image itself."""
    true_size: tuple[int, int]
    """Height and width of the image proper inside `pixels`; the rest is padding."""
    size: tuple[int, int]
    """Height and width of the given image, in pixels."""


class Backend(Protocol):
    """Runs a detector on batches. The methods may be called from any thread."""

    @property
    def class_names(self) -> Mapping[int, str]:
        """Class names by label map id."""
        ...

    @property
    def source(self) -> str:
        """Origin of the model, for messages."""
        ...

    @property
    def tiling(self) -> Tiling | None:
        """The tiles that the model was trained in; None: whole images."""
        ...

    @property
    def image_kind(self) -> ImageKind:
        """Channels and bits of the images."""
        ...

    @property
    def batch_sizes(self) -> tuple[int, ...] | None:
        """Batch sizes of `run`; None: any, and each new one compiles a program."""
        ...

    @property
    def max_detections(self) -> int:
        """Most detections in an image."""
        ...

    def prepare(self, image: Pixels, where: str | None = None) -> Prepared:
        """Resizes an image for the model; `where` names it in errors.

        Raises:
            UserError: the image is larger than the canvas of a resizer that does not shrink.
        """
        ...

    def warm_up(self, batch_size: int) -> None:
        """Loads or compiles what `run` needs for batches of a size; the first `run` would do it."""
        ...

    def run(self, images: Sequence[Prepared]) -> list[RawDetections]:
        """Detects in a batch of images."""
        ...
