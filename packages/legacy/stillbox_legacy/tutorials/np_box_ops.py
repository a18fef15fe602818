"""`object_detection.utils.np_box_ops`: areas and overlaps of boxes in arrays.

The functions have the names, arguments and results of the original. Boxes are `[N, 4]`, ymin, xmin,
ymax, xmax, in any unit; a pair of empty boxes has the overlap 0, where the original divides by 0.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillbox.evaluation.results import box_areas, covered_matrix, iou_matrix, shared_areas

FloatArray = NDArray[np.float64]


def area(boxes: ArrayLike) -> FloatArray:
    """Returns `[N]` areas."""
    return box_areas(np.asarray(boxes, np.float64))


def intersection(boxes1: ArrayLike, boxes2: ArrayLike) -> FloatArray:
    """Returns the shared area of every pair, `[N, M]`."""
    return shared_areas(np.asarray(boxes1, np.float64), np.asarray(boxes2, np.float64))


def iou(boxes1: ArrayLike, boxes2: ArrayLike) -> FloatArray:
    """Returns the intersection over union of every pair, `[N, M]`."""
    return iou_matrix(np.asarray(boxes1, np.float64), np.asarray(boxes2, np.float64))


def ioa(boxes1: ArrayLike, boxes2: ArrayLike) -> FloatArray:
    """Returns the share of each box of `boxes2` that lies in each of `boxes1`, `[N, M]`."""
    return covered_matrix(np.asarray(boxes2, np.float64), np.asarray(boxes1, np.float64)).T
