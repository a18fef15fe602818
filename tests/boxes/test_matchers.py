from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes import matchers
from stillbox.boxes.coders import encode_faster_rcnn, encode_mean_stddev
from stillbox.boxes.geometry import neg_sq_dist
from stillbox.boxes.matchers import (
    BACKGROUND,
    IGNORED,
    Frame,
    Rows,
    argmax_match,
    assign_targets,
    bipartite_match,
)
from tests.boxes import golden
from tests.helpers import at_once

# The published unit tests of the reference .
SIMILARITY = [[1, 1, 1, 3, 1], [2, -1, 2, 0, 4], [3, 0, -1, 0, 0]]
FORCED = [[1, 1, 1, 3, 1], [-1, 0, -2, -2, -1], [3, 0, -1, 2, 0]]
PADDED = [[1, 1, 1, 3, 1], [-1, 0, -2, -2, -1], [0] * 5, [3, 0, -1, 2, 0], [0] * 5]
ALL = [True, True, True]


def rows_of(similarity, valid, used=None):
    """The rows of a matrix."""
    matrix = jnp.asarray(similarity, jnp.float32)
    used = len(matrix) if used is None else used
    boxes, anchors = (np.zeros((size, 4), np.float32) for size in matrix.shape)
    return Rows(lambda row: matrix[row], valid, used, boxes, anchors, Frame())


def compiled_argmax(similarity, valid, used=None, **options):
    def run(similarity):
        return matchers.argmax_match(rows_of(similarity, valid, used), **options)

    return at_once(run, jnp.asarray(similarity, jnp.float32))


def compiled_bipartite(similarity, valid):
    return at_once(
        lambda similarity: matchers.bipartite_match(rows_of(similarity, valid)),
        jnp.asarray(similarity, jnp.float32),
    )


@pytest.mark.parametrize(
    "options, matches",
    [
        # Column maxima are 3, 1, 2, 3, 4 in rows 2, 0, 1, 0, 1.
        ({"ignore_thresholds": True}, [2, 0, 1, 0, 1]),
        ({"matched_threshold": 3, "unmatched_threshold": 3}, [2, -1, -1, 0, 1]),
        ({"matched_threshold": 3, "unmatched_threshold": 2}, [2, -1, -2, 0, 1]),
        (
            {
                "matched_threshold": 3,
                "unmatched_threshold": 2,
                "negatives_lower_than_unmatched": False,
            },
            [2, -2, -1, 0, 1],
        ),
    ],
)
def test_thresholds_part_matched_ignored_and_background(options, matches):
    result = compiled_argmax(SIMILARITY, ALL, **options)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, matches)


@pytest.mark.parametrize("force, matches", [(False, [2, -1, -1, 0, -1]), (True, [2, 1, -1, 0, -1])])
def test_every_row_can_force_a_match(force, matches):
    # Row 1 is nowhere above 0, and takes its best column, 1.
    result = compiled_argmax(
        FORCED,
        ALL,
        matched_threshold=3,
        unmatched_threshold=2,
        force_match_for_each_row=force,
    )
    np.testing.assert_array_equal(result, matches)


def test_padding_rows_force_nothing():
    result = compiled_argmax(
        PADDED,
        [True, True, False, True, False],
        matched_threshold=3,
        unmatched_threshold=2,
        force_match_for_each_row=True,
    )
    np.testing.assert_array_equal(result, [3, 1, -1, 0, -1])


@pytest.mark.parametrize(
    "valid, matches",
    [
        # Row 3 has no similarity and gets anchor 0; rows 0 and 1 share best anchor 1, and the
        # lower gets it although row 1 is more similar; row 2 takes anchor 3, the lower of two.
        ([1, 1, 1, 1], [3, 0, 0, 2, -1]),
        ([1, 1, 1, 0], [-1, 0, 0, 2, -1]),
        ([1, 1, 0, 0], [-1, 0, 0, -1, -1]),
        # Rows that are not valid still compete: anchor 1 goes to row 1, which has .7.
        ([0, 0, 0, 0], [-1, 1, 0, -1, -1]),
    ],
)
def test_forced_matches_equal_the_executed_probe(valid, matches):
    similarity = [[0.2, 0.6, 0.6, 0, 0], [0.1, 0.7, 0.6, 0.3, 0.3], [0, 0, 0, 0.3, 0.3], [0] * 5]
    result = compiled_argmax(similarity, np.bool_(valid), force_match_for_each_row=True)
    np.testing.assert_array_equal(result, matches)


def test_the_matched_threshold_itself_matches():
    np.testing.assert_array_equal(compiled_argmax([[0.5, 0.49999]], [True]), [0, -1])


def test_one_anchor_and_many_boxes():
    np.testing.assert_array_equal(compiled_argmax([[0.6], [0.8], [0.8]], ALL), [1])


def test_without_thresholds_all_but_padding_matches():
    # Padding has a similarity of minus infinity, the only one of anchor 1.
    nothing = [[0.0, -np.inf], [-np.inf, -np.inf]]
    np.testing.assert_array_equal(
        compiled_argmax(nothing, ALL[:2], ignore_thresholds=True), [0, -1]
    )


def matrix_match(similarity, valid, matched, unmatched, force):
    """The argmax matching on the whole matrix."""
    matches, best = similarity.argmax(axis=0), similarity.max(axis=0)
    matches[best < matched] = IGNORED
    matches[best < unmatched] = BACKGROUND
    if force:
        # Lower rows come last and have their way.
        for row in np.flatnonzero(valid)[::-1]:
            matches[similarity[row].argmax()] = row
    return matches


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("rows", "anchors", "levels"), [(1, 1, 3), (7, 60, 3), (30, 50, 5), (9, 4, 2), (24, 300, 1000)]
)
def test_matches_row_by_row_are_those_of_the_matrix(rows, anchors, levels, force):
    # Few levels make many ties, among the rows and among the anchors.
    rng = np.random.default_rng(rows * anchors)
    similarity = rng.integers(0, levels, (20, rows, anchors)).astype(np.float32) / levels
    valid = rng.random((20, rows)) < 0.6
    # Padding follows, which matches nothing; the loop ends before all of it.
    similarity = np.concatenate([similarity, np.full((20, 5, anchors), -np.inf, np.float32)], 1)
    valid = np.concatenate([valid, np.zeros((20, 5), bool)], axis=1)

    def match(similarity, valid, used):
        return compiled_argmax(
            similarity,
            valid,
            used,
            matched_threshold=0.7,
            unmatched_threshold=0.4,
            force_match_for_each_row=force,
        )

    expected = [
        matrix_match(overlaps, which, 0.7, 0.4, force)
        for overlaps, which in zip(similarity, valid, strict=True)
    ]
    matched = jax.jit(jax.vmap(match, in_axes=(0, 0, None)))
    for used in (rows, rows + 2, rows + 5):
        np.testing.assert_array_equal(matched(similarity, valid, used), expected)


def greedy_pairs(similarity, valid_rows):
    """Bipartite matching pair by pair, on the whole matrix."""
    left = np.where(np.asarray(valid_rows)[:, None], similarity, -np.inf)
    matches = np.full(left.shape[1], BACKGROUND)
    while left.max() > -np.inf:
        # The first maximum: the lowest row, then the lowest anchor.
        row, anchor = np.unravel_index(np.argmax(left), left.shape)
        matches[anchor] = row
        left[row], left[:, anchor] = -np.inf, -np.inf
    return matches


def test_bipartite_matches_equal_the_published_test():
    # .8 first: row 0 has anchor 2; row 1 then takes .2 before .15 .
    result = compiled_bipartite([[0.5, 0.1, 0.8], [0.15, 0.2, 0.3]], [True, True])
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, [-1, 1, 0])


def test_invalid_rows_at_any_position_take_no_anchor():
    similarity = [[0.5, 0.1, 0.8], [0.15, 0.2, 0.3]]
    np.testing.assert_array_equal(compiled_bipartite(similarity, [False, True]), [-1, -1, 1])
    np.testing.assert_array_equal(compiled_bipartite(similarity, [True, False]), [-1, -1, 0])
    np.testing.assert_array_equal(compiled_bipartite(similarity, [False, False]), [-1, -1, -1])


def test_a_valid_row_without_similarity_takes_a_free_anchor():
    np.testing.assert_array_equal(compiled_bipartite([[0, 0, 0], [0.4, 0, 0]], ALL[:2]), [1, 0, -1])


@pytest.mark.parametrize(
    ("rows", "anchors", "levels"),
    [(1, 1, 9), (1, 50, 3), (8, 200, 1000), (20, 30, 4), (12, 5, 3), (9, 9, 1), (30, 30, 2)],
)
def test_bipartite_matches_equal_those_made_pair_by_pair(rows, anchors, levels):
    # Few levels make many ties; more rows than anchors leave rows over.
    rng = np.random.default_rng(rows * anchors)
    similarity = rng.integers(0, levels, (40, rows, anchors)).astype(np.float32) / levels
    valid = rng.random((40, rows)) < rng.random((40, 1))
    result = jax.jit(jax.vmap(compiled_bipartite))(similarity, valid)
    expected = [
        greedy_pairs(overlaps, which) for overlaps, which in zip(similarity, valid, strict=True)
    ]
    np.testing.assert_array_equal(result, expected)


def test_bipartite_matching_compiles_once_for_any_number_of_boxes():
    traces = []

    @jax.jit
    def match(similarity, valid):
        traces.append(None)
        return compiled_bipartite(similarity, valid)

    similarity = np.random.default_rng(0).random((6, 20), np.float32)
    for count in range(7):
        assert (np.asarray(match(similarity, np.arange(6) < count)) >= 0).sum() == count
    assert len(traces) == 1


# From the original's unit tests. IoUs of the overlapping pairs: anchor 0 with box 0: 1; anchor 1
# with box 1: .12 / (.15 + .16 - .12) = .63; anchor 3 with box 2: .05 / (.0625 + .054 - .05) = .75.
ANCHORS = np.float32([[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 0.8], [0, 0.5, 0.5, 1], [0.75, 0, 1, 0.25]])
BOXES = np.float32([[0, 0, 0.5, 0.5], [0.5, 0.5, 0.9, 0.9], [0.75, 0, 0.95, 0.27]])
# Channels 1, 5 and 3 of the published test are classes 0, 4 and 2 behind the background.
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
    # Anchor 2 meets no box: background, channel 0.
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
def test_the_background_has_a_channel_only_where_it_is_a_class(
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


def test_a_box_without_area_forces_a_match_with_a_finite_delta():
    options = {
        **OPTIONS,
        "encode": encode_faster_rcnn,
        "match": partial(argmax_match, force_match_for_each_row=True),
    }
    box = np.full((1, 4), 0.3)
    targets = assign_targets(ANCHORS, box, CLASSES[:1], np.ones(1), **options)
    np.testing.assert_array_equal(targets.matches, [0, -1, -1, -1])
    assert np.isfinite(targets.box_targets).all()


def test_padding_matches_nothing_for_every_similarity():
    # The anchor in the corner is nearer to the padding at 0, 0, 0, 0 than to the box.
    anchors = np.float32([[0, 0, 0.1, 0.1], [0.5, 0.5, 0.9, 0.9]])
    boxes, classes = np.float32([[0.5, 0.5, 1, 1], [0, 0, 0, 0]]), np.zeros(2, np.int32)
    options = {**OPTIONS, "similarity": neg_sq_dist}
    options["match"] = partial(argmax_match, ignore_thresholds=True)
    targets = assign_targets(anchors, boxes, classes, np.float32([1, 0]), **options)
    np.testing.assert_array_equal(targets.matches, [0, 0])
    # Without any box there is nothing to match.
    targets = assign_targets(anchors, np.zeros((2, 4)), classes, np.zeros(2), **options)
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
    targets = assign_targets(ANCHORS[:1], BOXES[:1], CLASSES[:1], np.ones(1), **OPTIONS)
    np.testing.assert_array_equal(targets.matches, [0])


def test_a_class_beyond_the_last_has_no_target():
    targets = assign_targets(ANCHORS, BOXES, np.array([6, 4, 2]), np.ones(3), **OPTIONS)
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
    # Anchor 150 is assigned to box 2 of class 89, which has the last of 91 channels.
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
