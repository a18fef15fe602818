from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes.coders import encode_faster_rcnn, encode_mean_stddev
from stillbox.boxes.geometry import neg_sq_dist
from stillbox.boxes.matchers import argmax_match, bipartite_match
from stillbox.boxes.targets import assign_targets
from tests.boxes import golden

# From the original's unit tests. IoUs of the overlapping pairs: anchor 0 with box 0: 1; anchor 1
# with box 1: .12 / (.15 + .16 - .12) = .63; anchor 3 with box 2: .05 / (.0625 + .054 - .05) = .75.
ANCHORS = np.float32([[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 0.8], [0, 0.5, 0.5, 1], [0.75, 0, 1, 0.25]])
BOXES = np.float32([[0, 0, 0.5, 0.5], [0.5, 0.5, 0.9, 0.9], [0.75, 0, 0.95, 0.27]])
# Slots 1, 5 and 3 of the published test are classes 0, 4 and 2 behind a background slot.
CLASSES = np.int32([0, 4, 2])


OPTIONS = {
    "num_classes": 6,
    "background_class": True,
    "encode_background_as_zeros": False,
    "negative_class_weight": 1.0,
    "match": argmax_match,
    "encode": partial(encode_mean_stddev, stddev=0.1),
}


def test_targets_equal_the_published_test():
    targets = assign_targets(ANCHORS, BOXES, CLASSES, np.ones(3), **OPTIONS)
    np.testing.assert_array_equal(targets.matches, [0, 1, -1, 2])
    # Anchor 2 meets no box: background, slot 0.
    np.testing.assert_array_equal(targets.class_targets, np.eye(7)[[1, 5, 0, 3]])
    np.testing.assert_array_equal(targets.class_weights, [1, 1, 1, 1])
    # Box 1 less anchor 1: [0, 0, -.1, .1]; box 2 less anchor 3: [0, 0, -.05, .02]; over .1.
    expected = [[0, 0, 0, 0], [0, 0, -1, 1], [0, 0, 0, 0], [0, 0, -0.5, 0.2]]
    np.testing.assert_allclose(targets.box_targets, expected, atol=1e-6)
    np.testing.assert_array_equal(targets.box_weights, [1, 1, 0, 1])


def test_weights_of_the_boxes_become_weights_of_their_anchors():
    weights = np.float32([0.3, 0, 0.5])
    targets = assign_targets(ANCHORS, BOXES, CLASSES, weights, **OPTIONS)
    # A box without weight still holds its anchor, which then counts in neither loss.
    np.testing.assert_array_equal(targets.matches, [0, 1, -1, 2])
    np.testing.assert_array_equal(targets.class_weights, np.float32([0.3, 0, 1, 0.5]))
    np.testing.assert_array_equal(targets.box_weights, np.float32([0.3, 0, 0, 0.5]))


@pytest.mark.parametrize(
    "background_class, as_zeros, width, background",
    [(True, True, 7, []), (True, False, 7, [0]), (False, True, 6, []), (False, False, 6, [])],
)
def test_the_background_has_a_slot_only_where_there_is_one(
    background_class, as_zeros, width, background
):
    options = {
        **OPTIONS,
        "background_class": background_class,
        "encode_background_as_zeros": as_zeros,
    }
    targets = assign_targets(ANCHORS, BOXES, CLASSES, np.ones(3), **options)
    assert targets.class_targets.shape == (4, width)
    np.testing.assert_array_equal(np.flatnonzero(targets.class_targets[2]), background)
    np.testing.assert_array_equal(np.argmax(targets.class_targets[0]), int(background_class))


def test_ignored_anchors_have_no_weight_and_background_has_its_own():
    # Box 1 overlaps anchor 1 by .63, between the thresholds.
    match = partial(argmax_match, matched_threshold=0.7, unmatched_threshold=0.5)
    options = {**OPTIONS, "match": match, "negative_class_weight": 0.25}
    targets = assign_targets(ANCHORS, BOXES, CLASSES, np.ones(3), **options)
    np.testing.assert_array_equal(targets.matches, [0, -2, -1, 2])
    np.testing.assert_array_equal(targets.class_weights, [1, 0, 0.25, 1])
    np.testing.assert_array_equal(targets.box_weights, [1, 0, 0, 1])
    np.testing.assert_array_equal(targets.box_targets[1], np.zeros(4))


def test_an_image_without_boxes_is_all_background_and_finite():
    options = {
        **OPTIONS,
        "encode": encode_faster_rcnn,
        "match": partial(argmax_match, force_match_for_each_row=True),
    }
    targets = assign_targets(ANCHORS, np.zeros((5, 4)), np.zeros(5, int), np.zeros(5), **options)
    np.testing.assert_array_equal(targets.matches, [-1] * 4)
    np.testing.assert_array_equal(targets.class_weights, np.ones(4))
    np.testing.assert_array_equal(targets.box_weights, np.zeros(4))
    np.testing.assert_array_equal(targets.box_targets, np.zeros((4, 4)))


def test_ignored_boxes_exclude_the_anchors_that_they_cover():
    options = {**OPTIONS, "match": partial(argmax_match, force_match_for_each_row=True)}
    targets = assign_targets(ANCHORS, BOXES, CLASSES, np.zeros(3), **options)
    np.testing.assert_array_equal(targets.class_weights, [0, 0, 1, 0])
    np.testing.assert_array_equal(targets.box_weights, np.zeros(4))


def test_a_box_without_area_forces_a_match_with_a_finite_code():
    options = {
        **OPTIONS,
        "encode": encode_faster_rcnn,
        "match": partial(argmax_match, force_match_for_each_row=True),
    }
    targets = assign_targets(ANCHORS, [[0.3, 0.3, 0.3, 0.3]], [0], [1.0], **options)
    np.testing.assert_array_equal(targets.matches, [0, -1, -1, -1])
    assert np.isfinite(targets.box_targets).all()


def test_padding_matches_nothing_for_every_similarity():
    # The anchor in the corner is nearer to the padding at 0, 0, 0, 0 than to the box.
    anchors = np.float32([[0, 0, 0.1, 0.1], [0.5, 0.5, 0.9, 0.9]])
    boxes = np.float32([[0.5, 0.5, 1, 1], [0, 0, 0, 0]])
    options = {**OPTIONS, "similarity": neg_sq_dist}
    options["match"] = partial(argmax_match, ignore_thresholds=True)
    targets = assign_targets(anchors, boxes, [0, 0], [1.0, 0.0], **options)
    np.testing.assert_array_equal(targets.matches, [0, 0])
    # Without any box there is nothing to match.
    targets = assign_targets(anchors, np.zeros((2, 4)), [0, 0], [0.0, 0.0], **options)
    np.testing.assert_array_equal(targets.matches, [-1, -1])


def test_bipartite_matching_gives_each_weighted_box_one_anchor():
    options = {**OPTIONS, "match": bipartite_match}
    weights = np.float32([0, 0.3, 1])
    targets = assign_targets(ANCHORS, BOXES, CLASSES, weights, **options)
    # Box 0 has no weight: its anchor is background, for there are no thresholds to ignore by.
    np.testing.assert_array_equal(targets.matches, [-1, 1, -1, 2])
    np.testing.assert_array_equal(targets.class_weights, np.float32([1, 0.3, 1, 1]))
    np.testing.assert_array_equal(targets.box_weights, np.float32([0, 0.3, 0, 1]))


def test_one_anchor_and_one_box():
    targets = assign_targets(ANCHORS[:1], BOXES[:1], CLASSES[:1], [1.0], **OPTIONS)
    np.testing.assert_array_equal(targets.matches, [0])


def test_a_class_beyond_the_last_slot_has_no_target():
    targets = assign_targets(ANCHORS, BOXES, [6, 4, 2], np.ones(3), **OPTIONS)
    np.testing.assert_array_equal(targets.class_targets[0], np.zeros(7))


def reference_batch():
    """The ground truth of the executed goldens , padded to 8 boxes."""
    boxes, classes = np.zeros((2, 8, 4), np.float32), np.zeros((2, 8), np.int32)
    weights = np.zeros((2, 8), np.float32)
    boxes[0, :3] = [[0.1, 0.1, 0.4, 0.5], [0.5, 0.5, 0.9, 0.95], [0.05, 0.6, 0.2, 0.7]]
    classes[0, :3], weights[0, :3] = [0, 17, 89], 1
    boxes[1, 0], classes[1, 0], weights[1, 0] = [0.2, 0.3, 0.8, 0.7], 2, 1
    return boxes, classes, weights


def test_targets_of_an_ssd_equal_the_executed_reference():
    expected = golden.load("boxes_targets.json")
    assign = partial(
        assign_targets,
        golden.ssd_300_anchors(),
        num_classes=90,
        background_class=True,
        encode_background_as_zeros=True,
        negative_class_weight=1.0,
        match=partial(argmax_match, force_match_for_each_row=True),
        encode=encode_faster_rcnn,
    )
    targets = jax.jit(jax.vmap(assign))(*reference_batch())
    matches = np.asarray(targets.matches)
    np.testing.assert_array_equal((matches >= 0).sum(axis=1), expected["num_pos"])
    np.testing.assert_array_equal((matches == -1).sum(axis=1), expected["num_neg"])
    np.testing.assert_array_equal((matches == -2).sum(axis=1), expected["num_ign"])
    positives = np.flatnonzero(matches[0] >= 0)
    np.testing.assert_array_equal(
        np.bincount(matches[0, positives], minlength=8), expected["pos_per_gt_img0"]
    )
    np.testing.assert_array_equal(positives[:10], expected["first_pos_idx_img0"])
    np.testing.assert_allclose(
        targets.box_targets[0, positives[:3]], expected["regt_first_pos_img0"], atol=1e-6
    )
    # Anchor 150 is assigned to box 2 of class 89, whose slot is the last of 91.
    assert targets.class_targets.shape == (2, 1917, 91)
    np.testing.assert_array_equal(np.flatnonzero(targets.class_targets[0, 150]), [90])


def test_varying_numbers_of_boxes_compile_once():
    traces = []

    @jax.jit
    def assign(boxes, classes, weights):
        traces.append(None)
        return assign_targets(jnp.asarray(ANCHORS), boxes, classes, weights, **OPTIONS)

    for count in range(4):
        weights = (np.arange(3) < count).astype(np.float32)
        boxes = np.where(weights[:, None] > 0, BOXES, 0)
        targets = assign(boxes, CLASSES, weights)
        assert int((targets.matches >= 0).sum()) == count
    assert len(traces) == 1
