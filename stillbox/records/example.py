"""One image with its boxes, on the host."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Example:
    """One image as it is stored, with its ground truth. N is the number of its boxes.

    Boxes are `[ymin, xmin, ymax, xmax]`, normalised to the stored image. Class ids are the label
    map's; nothing here starts at 0 because an array does.
    """

    image_id: str
    """The record's `image/source_id`, else the file name, else `shard:record`."""
    encoded: bytes
    """JPEG or PNG, as stored."""
    filename: str = ""
    """Name of the image before it became a record."""
    height: int = 0
    """Rows that the record claims, 0 where it says nothing."""
    width: int = 0
    """Columns that the record claims, 0 where it says nothing."""
    boxes: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    """`[N, 4]`."""
    class_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """`[N]`, label map ids."""
    weights: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """`[N]`, 1 counts fully, 0 is ignored by matcher and loss."""
    is_crowd: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """`[N]`, COCO's crowds."""
    difficult: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """`[N]`, VOC's difficult objects."""
    truncated: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """`[N]`, VOC's truncated objects."""
    area: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """`[N]`, segment area in square pixels of the stored image; NaN where the record has none."""
