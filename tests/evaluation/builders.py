"""Small ground truths and results for the tests of this folder."""

import numpy as np

from stillbox.evaluation.results import ImageResult, ImageTruth
from stillbox.records.label_map import ClassSlots


def by_id(num_classes):
    """The slots of a model; class index c stands for label map id c + 1."""
    return ClassSlots(tuple(range(1, num_classes + 1)))


def truth(image_id="1", boxes=(), class_ids=None, *, size=(200, 200), **columns):
    boxes = np.array(boxes, np.float64).reshape(-1, 4)
    n = len(boxes)
    return ImageTruth(
        image_id=image_id,
        height=size[0],
        width=size[1],
        boxes=boxes,
        class_ids=np.array([1] * n if class_ids is None else class_ids, np.int64),
        is_crowd=np.array(columns.get("is_crowd", [False] * n), np.bool_),
        is_difficult=np.array(columns.get("is_difficult", [False] * n), np.bool_),
        area=np.array(columns.get("area", [np.nan] * n), np.float64),
    )


def result(image_id="1", boxes=(), scores=(), class_ids=None):
    boxes = np.array(boxes, np.float64).reshape(-1, 4)
    return ImageResult(
        image_id=image_id,
        boxes=boxes,
        scores=np.array(scores, np.float64),
        class_ids=np.array([1] * len(boxes) if class_ids is None else class_ids, np.int64),
    )


def overlap(box, other, crowd=False):
    """The IoU of two boxes, or the share of the first in a crowd, without numpy."""
    sides = [min(box[i + 2], other[i + 2]) - max(box[i], other[i]) for i in (0, 1)]
    shared = max(sides[0], 0) * max(sides[1], 0)
    area, its = ((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other))
    return shared / (area if crowd else area + its - shared)


def random_set(seed, images=30):
    """Ground truth and jittered results that reach every branch of the matching."""
    rng = np.random.default_rng(seed)
    truths, results = [], []
    for number in range(images):
        n, k = rng.integers(0, 8), rng.integers(0, 12)
        corner = rng.uniform(0, 300, (n, 2))
        boxes = np.concatenate([corner, corner + rng.choice([15, 60, 150], (n, 1))], axis=1)
        ids = rng.integers(1, 4, n)
        marks = rng.uniform(size=n)  # drawn once: the rest of a set does not depend on the marks
        area = (boxes[:, 2] - boxes[:, 0]) ** 2 * 0.7
        # Ids out of order and with several digits, as real ones.
        image_id = str((number * 7919) % 1009 + 1)
        truths.append(
            truth(
                image_id,
                boxes,
                ids,
                size=(480, 640),
                area=area,
                is_crowd=marks < 0.1,
                is_difficult=marks > 0.8,
            )
        )
        chosen = rng.integers(0, n, k) if n else np.zeros(0, int)
        found_boxes = boxes[chosen] + rng.normal(0, 4, (len(chosen), 4))
        found_boxes[:, 2:] = np.maximum(found_boxes[:, 2:], found_boxes[:, :2] + 1)
        wrong = rng.uniform(size=len(chosen)) < 0.2
        found_ids = np.where(wrong, rng.integers(1, 4, len(chosen)), ids[chosen])
        # One decimal: scores that are equal across images, where the order of images decides.
        scores = np.round(rng.uniform(size=len(chosen)), 1)
        results.append(result(image_id, found_boxes, scores, found_ids))
    return truths, results
