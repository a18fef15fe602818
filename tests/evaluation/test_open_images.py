"""Open Images V2: wrong detections inside groups are ignored, and groups need not be found.

The expected numbers are those of the original's `OpenImagesDetectionEvaluator`
(`object_detection/utils/object_detection_evaluation.py` of PyPI's
tf-models-research-object-detection 2.8.0.post1), executed on the images below.
"""

import numpy as np
import pytest

from stillbox.evaluation.scores import score
from stillbox.records.example import Example
from stillbox.records.tf_example import parse_example, serialize_example
from stillbox.records.wire import parse_features, serialize_features
from tests.evaluation.builders import result, truth

CLASSES = {1: "a", 2: "b", 3: "c"}


def boxes(rng, count):
    corners = rng.uniform(0, 80, (count, 2))
    return np.concatenate([corners, corners + rng.uniform(5, 60, (count, 2))], 1).astype(np.float32)


def images():
    """Yields ground truth, classes, groups, detections, their classes and scores of an image."""
    rng = np.random.RandomState(7)
    for _ in range(12):
        truths, found = rng.randint(0, 7), rng.randint(0, 12)
        objects, classes = boxes(rng, truths), rng.randint(1, 4, truths)
        groups = rng.uniform(size=truths) < 0.35
        near = boxes(rng, found) if not truths else None
        if truths:
            near = objects[rng.randint(0, truths, found)] + rng.uniform(-6, 6, (found, 4))
        close = rng.uniform(size=found) < 0.7
        detections = np.where(close[:, None], near, boxes(rng, found)).astype(np.float32)
        kinds, scores = rng.randint(1, 4, found), rng.uniform(size=found).astype(np.float32)
        if truths:
            chosen = classes[rng.randint(0, truths, found)]
            kinds = np.where(rng.uniform(size=found) < 0.6, chosen, kinds)
        yield objects, classes, groups, detections, kinds, scores


def test_the_scores_are_those_of_the_original():
    truths, results = [], []
    for number, (objects, classes, groups, detections, kinds, scores) in enumerate(images()):
        truths.append(truth(str(number), objects, classes, is_crowd=groups))
        results.append(result(str(number), detections, scores, kinds))
    scores = score(truths, results, CLASSES, metrics=["open_images"])
    assert scores.original_names(per_category=True) == pytest.approx(
        {
            "OpenImagesV2_Precision/mAP@0.5IOU": 0.17255291005291004,
            "OpenImagesV2_PerformanceByCategory/AP@0.5IOU/a": 0.3601190476190476,
            "OpenImagesV2_PerformanceByCategory/AP@0.5IOU/b": 0.09642857142857142,
            "OpenImagesV2_PerformanceByCategory/AP@0.5IOU/c": 0.06111111111111111,
        }
    )
    # Groups are what it differs by.
    pascal = score(truths, results, CLASSES, metrics=["pascal_voc"])
    assert pascal.summary["VOC_mAP"] != pytest.approx(0.17255291, abs=1e-3)


def test_groups_are_read_where_there_are_no_crowds():
    example = Example(
        image_id="a",
        encoded=b"\x89PNG",
        boxes=np.array([[0, 0, 0.5, 0.5], [0, 0, 1, 1]], np.float32),
        class_ids=np.array([1, 1], np.int32),
    )
    features = parse_features(serialize_example(example))
    features["image/object/group_of"] = np.array([0, 1])
    assert not parse_example(serialize_features(features)).example.is_crowd.any()
    del features["image/object/is_crowd"]
    assert parse_example(serialize_features(features)).example.is_crowd.tolist() == [False, True]
