"""Scores beside the share of correct detections."""

import pytest

from stillbox.evaluation.charts import reliability_figure
from stillbox.evaluation.scores import score
from tests.evaluation.builders import random_set, result, truth

NAMES = {1: "cat", 2: "dog", 3: "owl"}
BOXES = [[0, 0, 50, 50], [100, 100, 150, 150]]


def test_the_error_is_the_mean_distance_of_score_and_share():
    truths = [truth("a", BOXES)]
    # Right .95, wrong .91, right .35: mean scores .93 and .35, shares .5 and 1.
    boxes = [BOXES[0], [60, 60, 90, 90], BOXES[1]]
    scores = score(truths, [result("a", boxes, [0.95, 0.91, 0.35])], NAMES)
    calibration = scores.coco.calibration
    filled = {each.low: each for each in calibration.bins if each.detections}
    assert filled.keys() == {0.3, 0.9}
    assert (filled[0.9].score, filled[0.9].correct) == pytest.approx((0.93, 0.5))
    assert (filled[0.3].score, filled[0.3].correct) == pytest.approx((0.35, 1))
    assert calibration.error == pytest.approx((2 * 0.43 + 1 * 0.65) / 3)
    (axes,) = reliability_figure(scores).axes
    assert f"{calibration.error:.3f}" in axes.get_title(loc="left")
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([1, 0.5])


def test_without_detections_there_is_no_error_and_no_figure():
    scores = score([truth("a", BOXES)], [], NAMES)
    assert scores.coco.calibration.error is None
    assert all(each.score is each.correct is None for each in scores.coco.calibration.bins)
    assert reliability_figure(scores) is None


def test_scores_that_are_no_probabilities_have_none():
    scores = score([truth("a", BOXES)], [result("a", BOXES, [3.5, -1.0])], NAMES)
    assert scores.coco.summary["AP"] == pytest.approx(1)
    assert scores.coco.calibration.error is None
    assert reliability_figure(scores) is None


def test_other_metrics_have_none():
    assert reliability_figure(score(*random_set(1), NAMES, metrics=("pascal_voc",))) is None
