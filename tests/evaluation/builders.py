"""Small ground truths and results for the tests of this folder."""

import numpy as np

from stillbox.evaluation.results import ImageResult, ImageTruth


def truth(image_id="1", boxes=(), class_ids=None, *, is_crowd=None, area=None, size=(200, 200)):
    boxes = np.array(boxes, np.float64).reshape(-1, 4)
    n = len(boxes)
    return ImageTruth(
        image_id=image_id,
        height=size[0],
        width=size[1],
        boxes=boxes,
        class_ids=np.array([1] * n if class_ids is None else class_ids, np.int64),
        is_crowd=np.array([False] * n if is_crowd is None else is_crowd, np.bool_),
        area=np.array([np.nan] * n if area is None else area, np.float64),
    )


def result(image_id="1", boxes=(), scores=(), class_ids=None):
    boxes = np.array(boxes, np.float64).reshape(-1, 4)
    return ImageResult(
        image_id=image_id,
        boxes=boxes,
        scores=np.array(scores, np.float64),
        class_ids=np.array([1] * len(boxes) if class_ids is None else class_ids, np.int64),
    )
