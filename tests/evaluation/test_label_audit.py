"""Suspicious labels: one planted fault of each kind, and what must not be suspicious."""

import numpy as np
import pytest

from stillbox.evaluation.label_audit import audit_labels, surest
from stillbox.evaluation.label_audit_page import about, audit_rows
from tests.evaluation.builders import result, truth

NAMES = {1: "cat", 2: "dog"}
HERE, THERE, BESIDE = [0, 0, 40, 40], [100, 100, 140, 140], [100, 115, 140, 155]


def audited(labels, classes, boxes, scores, found_classes=None, **columns):
    """Returns the suspicions that are surer than chance in one image."""
    truths = [truth("a", labels, classes, **columns)]
    every = audit_labels(truths, [result("a", boxes, scores, found_classes)])
    return [each for each in every if each.sureness > 0.3]


def test_labels_that_the_model_confirms_are_not_suspicious():
    assert audited([HERE, THERE], [1, 2], [HERE, THERE], [0.9, 0.8], [1, 2]) == []


def test_an_object_without_a_label_is_missing():
    (each,) = audited([HERE], [1], [HERE, THERE], [0.9, 0.8], [1, 2])
    assert (each.fault, each.label, each.label_index) == ("missing", None, None)
    assert (each.suggestion.sides, each.suggestion.class_id) == (tuple(THERE), 2)
    assert each.sureness == pytest.approx(0.8)
    assert about(each, NAMES) == "dog without a label, 0.80, image a"


def test_two_detections_of_an_unlabelled_object_are_one_suspicion():
    near = [100, 102, 140, 142]
    (each,) = audited([HERE], [1], [HERE, THERE, near], [0.9, 0.8, 0.7])
    assert each.sureness == pytest.approx(0.8)


def test_a_label_without_an_object_is_spurious():
    (each,) = audited([HERE, THERE], [1, 2], [HERE], [0.9])
    assert (each.fault, each.label_index, each.suggestion) == ("spurious", 1, None)
    assert each.sureness == pytest.approx(1)


def test_an_object_of_another_class_is_a_wrong_class():
    # The own class has a score of .25 there: .8 * (1 - .25).
    (each,) = audited([THERE], [1], [THERE, THERE], [0.8, 0.25], [2, 1])
    assert (each.fault, each.suggestion.class_id) == ("wrong class", 2)
    assert each.sureness == pytest.approx(0.6)


def test_a_box_beside_its_object_is_badly_placed():
    # 25 columns of 40 are shared: IoU 25 / 55.
    (each,) = audited([BESIDE], [1], [THERE], [0.9])
    assert (each.fault, each.suggestion.sides) == ("badly placed", tuple(THERE))
    assert each.sureness == pytest.approx(0.9)


def test_neighbours_that_are_both_found_are_neither_missing_nor_misplaced():
    assert audited([THERE, BESIDE], [1, 1], [THERE, BESIDE], [0.9, 0.8]) == []
    # Without its label, a neighbour that overlaps another one is missing.
    (each,) = audited([THERE], [1], [THERE, BESIDE], [0.9, 0.8])
    assert (each.fault, each.suggestion.sides) == ("missing", tuple(BESIDE))


def test_crowds_are_not_judged():
    assert audited([[90, 90, 150, 150]], [1], [THERE], [0.9], is_crowd=[True]) == []


def test_suspicions_of_all_images_are_ordered_and_have_rows():
    truths = [truth("a", [HERE], [1]), truth("b", [HERE], [1]), truth("c")]
    results = [result("a", [HERE], [0.4]), result("b"), result("c", [THERE], [0.7], [2])]
    every = audit_labels(truths, results)
    assert [each.image_id for each in every] == ["b", "c", "a"]
    assert [each.image_id for each in surest(every, 1)] == ["b", "c"]
    head, *rows = audit_rows(every, NAMES)
    assert {len(row) for row in rows} == {len(head)}
    first = dict(zip(head, rows[0], strict=True))
    assert (first["fault"], first["label"], first["ymax"], first["suggestion"]) == (
        *("spurious", "cat", 40),
        "",
    )
    assert np.isclose(first["sureness"], 1)
