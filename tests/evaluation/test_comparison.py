"""Two detectors beside each other: changes, their intervals, and the images that differ."""

import numpy as np
import pytest

from stillbox.evaluation.comparison import Change, ModelFigures, compare_results
from stillbox.evaluation.comparison_page import comparison_page
from stillbox.evaluation.scores import score
from tests.evaluation.builders import random_set, result, truth

NAMES = {1: "cat", 2: "<dog>", 3: "owl"}
MODELS = tuple(
    ModelFigures(source=name, bytes=2_000_000, gflop=1.5, milliseconds=12.5) for name in "ab"
)


def compared(truths, first, second, **options):
    return compare_results(truths, (first, second), NAMES, MODELS, **options)


def shifted(results, pixels):
    return [
        result(each.image_id, each.boxes + pixels, each.scores, each.class_ids) for each in results
    ]


def test_numbers_are_the_scores_of_each():
    truths, first = random_set(3)
    second = shifted(first, 6)
    comparison = compared(truths, first, second, samples=30)
    for place, results in (("first", first), ("second", second)):
        coco = score(truths, results, NAMES).coco
        assert {row.name: getattr(row, place) for row in comparison.metrics} == coco.summary
        for row in comparison.classes:
            assert getattr(row, place) == coco.per_class[row.name].numbers["AP"]


def test_an_interval_holds_the_change_and_tells_it_from_chance():
    truths, first = random_set(4, images=60)
    clear = compared(truths, first, shifted(first, 9), samples=60)
    assert clear.ap.low < clear.ap.change < clear.ap.high < 0
    assert clear.ap.verdict == "worse"
    assert "excludes 0" in clear.summary()
    opposite = compared(truths, shifted(first, 9), first, samples=60)
    assert opposite.ap.verdict == "better"
    rng = np.random.default_rng(0)
    noise = [
        result(each.image_id, each.boxes, each.scores + rng.normal(0, 1e-3, len(each.scores)),
               each.class_ids) for each in first]  # fmt: skip
    chance = compared(truths, first, noise, samples=60)
    assert chance.ap.verdict == ""
    assert "includes 0" in chance.summary()
    # The same draws bring the same intervals.
    assert compared(truths, first, noise, samples=60) == chance


def test_what_has_no_ground_truth_has_no_number():
    truths = [truth("a", [[0, 0, 20, 20]]), truth("b")]
    exact = [result("a", [[0, 0, 20, 20]], [0.9]), result("b", [[0, 0, 20, 20]], [0.9])]
    comparison = compared(truths, exact, [], samples=10)
    rows = {row.name: row for row in comparison.metrics}
    assert rows["APl"] == Change(name="APl", first=None, second=None, low=None, high=None)
    assert rows["APl"].change is None
    assert (rows["APs"].first, rows["APs"].second) == pytest.approx((1, 0))
    assert [row.name for row in comparison.classes] == ["cat"]
    # The image without an object has no AP.
    assert [image.image_id for image in comparison.images] == ["a"]
    assert "no ground truth" in comparison.render()
    nothing = compared([truth("a")], [], [], samples=10)
    assert nothing.is_worse(0.5)
    assert nothing.images == ()


def test_images_come_by_their_difference():
    box = [10, 10, 60, 60]
    truths = [truth(name, [box, [100, 100, 150, 150]]) for name in "abc"]
    whole = [result(name, truths[0].boxes, [0.9, 0.8]) for name in "abc"]
    less = [whole[0], result("b", [box], [0.9]), result("c")]
    comparison = compared(truths, whole, less, samples=0)
    assert [image.image_id for image in comparison.images] == ["c", "b"]
    assert comparison.images[0].change == pytest.approx(-1)
    assert comparison.ap.low is None
    assert comparison.is_worse(0.01)
    assert not compared(truths, less, whole, samples=0).is_worse(0.01)


def test_the_page_escapes_names_and_has_every_number():
    truths, first = random_set(5)
    comparison = compared(truths, first, shifted(first, 3), samples=5)
    page = comparison_page(comparison, ())
    assert "&lt;dog&gt;" in page
    assert "<dog>" not in page
    for row in (*comparison.metrics, *comparison.classes):
        if row.change is not None:
            assert f"{row.change:.4f}" in page
