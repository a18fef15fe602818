"""Ground truth and detections of an image.

Boxes are `[ymin, xmin, ymax, xmax]` in pixels of the original image, class ids are the label
map's. Float64, so that rounding does not move an IoU across a threshold.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Float = TypeVar("Float", np.float32, np.float64)


@dataclass(frozen=True, kw_only=True)
class ImageTruth:
    """The ground truth of one image with N boxes."""

    image_id: str
    """Names the image; unique among those that are scored together."""
    width: int
    """Columns of the original image, in pixels."""
    height: int
    """Rows of the original image, in pixels."""
    boxes: NDArray[np.float64]
    """`[N, 4]`, pixels."""
    class_ids: NDArray[np.int64]
    """`[N]`, label map ids."""
    is_crowd: NDArray[np.bool_]
    """`[N]`, crowds: detections inside are ignored."""
    is_difficult: NDArray[np.bool_]
    """`[N]`, VOC's difficult objects: its metrics ignore them, COCO's have none."""
    area: NDArray[np.float64]
    """`[N]`, segment area in square pixels that decides small, medium or large; NaN: the box's."""

    def areas(self) -> NDArray[np.float64]:
        """Returns `[N]` areas in square pixels, the box's own where the segment's is unknown."""
        return np.where(np.isnan(self.area), box_areas(self.boxes), self.area)


@dataclass(frozen=True, kw_only=True)
class ImageResult:
    """The K detections in one image."""

    image_id: str
    """As in the ground truth."""
    boxes: NDArray[np.float64]
    """`[K, 4]`, pixels of the original image."""
    scores: NDArray[np.float64]
    """`[K]`, confidences."""
    class_ids: NDArray[np.int64]
    """`[K]`, label map ids."""

    def at_least(self, min_score: float, limit: int | None = None) -> "ImageResult":
        """Returns the detections with a score of at least `min_score`, best first, `limit` at most.

        Equal scores keep their order.
        """
        order = np.argsort(-self.scores, kind="stable")
        chosen = order[self.scores[order] >= min_score][:limit]
        return ImageResult(
            image_id=self.image_id,
            boxes=self.boxes[chosen],
            scores=self.scores[chosen],
            class_ids=self.class_ids[chosen],
        )


def box_areas(boxes: NDArray[Float]) -> NDArray[Float]:
    """Returns `[N]` areas of boxes `[N, 4]`, in the square of their unit."""
    areas: NDArray[Float] = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def covered_matrix(boxes: NDArray[Float], others: NDArray[Float]) -> NDArray[Float]:
    """Returns the share of boxes `[N, 4]` that lies in others `[M, 4]`, `[N, M]`."""
    areas = np.broadcast_to(box_areas(boxes)[:, None], (len(boxes), len(others)))
    shared = _shared_areas(boxes, others)
    return np.divide(shared, areas, out=np.zeros_like(shared), where=shared > 0)


def iou_matrix(boxes: NDArray[Float], others: NDArray[Float]) -> NDArray[Float]:
    """Returns the IoU of every pair, `[N, M]`; boxes `[N, 4]`, others `[M, 4]`."""
    shared = _shared_areas(boxes, others)
    union = box_areas(boxes)[:, None] + box_areas(others)[None] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def _shared_areas(boxes: NDArray[Float], others: NDArray[Float]) -> NDArray[Float]:
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    areas: NDArray[Float] = np.maximum(high - low, 0).prod(axis=-1)
    return areas
