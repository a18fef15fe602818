"""One image with its boxes, on the host."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


def no_flags() -> NDArray[np.bool_]:
    """Returns the empty column of flags."""
    return np.zeros(0, np.bool_)


def no_numbers() -> NDArray[np.float32]:
    """Returns the empty column of numbers."""
    return np.zeros(0, np.float32)


@dataclass(frozen=True, kw_only=True)
class Example:
    """One image as it is stored, with its ground truth. N is the number of its boxes.

    Boxes are `[ymin, xmin, ymax, xmax]`, normalised to the stored image. Class ids are the label
    map's, from 1. A column of `DEFAULTS` that is empty is filled with its default.
    """

    image_id: str
    """The record's `image/source_id`, else the file name, else `shard:record`."""
    encoded: bytes
    """JPEG or PNG, as stored."""
    filename: str = ""
    """Name of the image before it became a record."""
    height: int = 0
    """Rows that the record claims, 0 if it does not."""
    width: int = 0
    """Columns that the record claims, 0 if it does not."""
    boxes: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    """`[N, 4]`."""
    class_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """`[N]`, label map ids."""
    weights: NDArray[np.float32] = field(default_factory=no_numbers)
    """`[N]`, 1 counts fully, 0 is ignored by matcher and loss."""
    is_crowd: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`, COCO's crowds."""
    difficult: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`, VOC's difficult objects."""
    truncated: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`, VOC's truncated objects."""
    area: NDArray[np.float32] = field(default_factory=no_numbers)
    """`[N]`, segment area in square pixels of the stored image; NaN: not known."""

    def __post_init__(self) -> None:
        for name, default in DEFAULTS.items():
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self.boxes), default))


DEFAULTS: dict[str, np.generic] = {
    "weights": np.float32(1),
    "is_crowd": np.False_,
    "difficult": np.False_,
    "truncated": np.False_,
    "area": np.float32(np.nan),
}
