"""Overlaps against hand arithmetic, against our own geometry, and against each other."""

import numpy as np
import pytest

from stillbox.boxes.geometry import iou, pairwise
from stillbox.boxes.matchers import Rows, argmax_match
from stillbox.checking import anchor_overlaps
from stillbox.checking.anchor_overlaps import (
    best_overlaps,
    match_boxes,
    split_lattices,
)
from stillbox.checking.truth_boxes import TruthBoxes
from stillbox.evaluation.results import iou_matrix
from stillbox.experiment.schema import (
    AnchorGrid,
    FlexibleGridAnchors,
    GridAnchors,
    MultiscaleAnchors,
    SsdAnchors,
)
from stillbox.models.anchors import anchors_per_location, build_anchors


def random_boxes(count, seed=0):
    rng = np.random.default_rng(seed)
    corners = rng.uniform(-0.1, 1.1, (count, 2, 2))
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).astype(np.float32)


def truth_of(*images):
    lengths = [len(boxes) for boxes in images]
    boxes = np.concatenate(images).astype(np.float32)
    ids = np.ones(len(boxes), np.int32)
    return TruthBoxes(boxes, ids, np.cumsum([0, *lengths]), len(images), 0)


def test_overlaps_equal_those_of_boxes_geometry():
    boxes, anchors = random_boxes(7), random_boxes(11, seed=1)
    expected = pairwise(iou, boxes, anchors)
    np.testing.assert_allclose(iou_matrix(boxes, anchors), expected, atol=1e-6)


def test_two_boxes_on_one_anchor_and_one_beside_it():
    # The anchor is the left half. The first box is its left half: .5. The second is all of it: 1.
    anchors = np.array([[0, 0, 1, 0.5], [0, 0.9, 1, 1]], np.float32)
    truth = truth_of([[0, 0, 1, 0.25], [0, 0, 1, 0.5]], [[0, 0, 1, 0.25]])
    matched = match_boxes(truth, anchors, 0.5)
    np.testing.assert_allclose(matched.best, [0.5, 1, 0.5])
    assert matched.anchor.tolist() == [0, 0, 0]
    # The first box resembles the anchor enough, but the anchor prefers the second. In the second
    # image the same box has no rival.
    assert matched.chosen.tolist() == [False, True, True]


@pytest.mark.parametrize("pairs", [2**22, 40])
def test_chosen_boxes_are_those_of_the_matcher(pairs, monkeypatch):
    monkeypatch.setattr(anchor_overlaps, "_PAIRS", pairs)
    boxes, anchors = random_boxes(9), random_boxes(300, seed=1)
    overlaps = pairwise(iou, boxes, anchors)
    matches = argmax_match(
        Rows(lambda row: overlaps[row], np.ones(9, bool), 9),
        matched_threshold=0.4,
        unmatched_threshold=0.4,
    )
    matched = match_boxes(truth_of(boxes), anchors, 0.4)
    assert set(np.flatnonzero(matched.chosen)) == set(np.asarray(matches).tolist()) - {-1}
    assert 0 < matched.chosen.sum() < 9


KINDS = [
    SsdAnchors(num_layers=3, aspect_ratios=(1.0, 2.0)),
    MultiscaleAnchors(min_level=3, max_level=5),
    FlexibleGridAnchors(grids=(AnchorGrid(), AnchorGrid(sizes=(9.0, 60.0), aspect_ratios=(2, 1)))),
    GridAnchors(base_height=30, base_width=50),
]


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config.kind)
def test_best_overlaps_equal_those_of_all_pairs(config):
    # An input that no stride divides, so that rows and columns differ.
    shapes = ((9, 13), (5, 7), (3, 4))[: config.count_maps()]
    anchors = build_anchors(config, shapes, (70, 100))
    lattices = split_lattices(anchors, shapes, anchors_per_location(config, len(shapes)))
    boxes = random_boxes(400)
    expected = iou_matrix(boxes, anchors).max(axis=1)
    np.testing.assert_allclose(best_overlaps(boxes, lattices), expected, atol=1e-5)


def test_images_without_boxes_are_skipped():
    matched = match_boxes(truth_of(np.zeros((0, 4)), [[0, 0, 1, 1]]), random_boxes(3), 0.5)
    assert matched.best.shape == (1,)
