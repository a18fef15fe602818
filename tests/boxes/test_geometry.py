import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from stillbox.boxes.adaptive_matching import (
    alignment_targets,
    atss_match,
    task_aligned_match,
)
from stillbox.boxes.distributions import (
    centerness,
    decode_distances,
    distillation_loss,
    distribution_focal_loss,
    encode_distances,
    mean_distances,
)
from stillbox.boxes.geometry import (
    area,
    change_frame,
    clip_to_window,
    giou,
    intersection,
    ioa,
    iou,
    neg_sq_dist,
    pairwise,
    thresholded_iou,
)
from stillbox.boxes.losses import (
    ciou_loss,
    quality_focal_loss,
    sigmoid_cross_entropy,
    varifocal_loss,
)
from stillbox.boxes.matchers import BACKGROUND, Frame, Predicted, Rows
from tests.boxes import golden

# The published unit test of the reference .
SOME = np.float32([[4, 3, 7, 5], [5, 6, 10, 7]])
OTHERS = np.float32([[3, 4, 6, 8], [14, 14, 15, 15], [0, 0, 20, 20]])


def test_area_is_height_times_width():
    # (7 - 4) * (5 - 3) = 6; (10 - 5) * (7 - 6) = 5; a point has none.
    np.testing.assert_array_equal(area(np.float32([*SOME, [2, 2, 2, 2]])), [6, 5, 0])


def test_intersection_of_every_pair():
    # y 4..6, x 4..5: 2; apart: 0; wholly inside: 6.  y 5..6, x 6..7: 1; apart; inside: 5.
    np.testing.assert_array_equal(pairwise(intersection, SOME, OTHERS), [[2, 0, 6], [1, 0, 5]])


def test_iou_of_every_pair_equals_the_published_table():
    # The first union is 6 + 12 - 2 = 16, the fourth 5 + 12 - 1 = 16; the big box holds 400.
    expected = [[2 / 16, 0, 6 / 400], [1 / 16, 0, 5 / 400]]
    np.testing.assert_allclose(pairwise(iou, SOME, OTHERS), expected, rtol=1e-6)


def test_ioa_divides_by_the_area_of_the_second_box():
    # Areas 12, 1 and 400.
    expected = [[2 / 12, 0, 6 / 400], [1 / 12, 0, 5 / 400]]
    np.testing.assert_allclose(pairwise(ioa, SOME, OTHERS), expected, rtol=1e-6)


def test_thresholded_iou_is_1_strictly_above_the_threshold():
    def similarity(threshold):
        return thresholded_iou(SOME[0], OTHERS[0], iou_threshold=threshold)

    # The IoU is 2 / 16.
    assert (similarity(0.12), similarity(0.125)) == (1.0, 0.0)


def test_negative_squared_distance_of_every_pair():
    # 9 + 16 + 1 = 26; 16 + 9 = 25; then 4 + 9 + 1 + 4 = 18, 25 + 1 + 0 + 1 = 27 and 1 + 1 + 4 = 6.
    boxes, others = [[0, 0, 0, 0], [1, 1, 0, 2]], [[3, 4, 1, 0], [-4, 0, 0, 3], [0, 0, 0, 0]]
    distances = pairwise(neg_sq_dist, np.float32(boxes), np.float32(others))
    np.testing.assert_array_equal(distances, [[-26, -25, 0], [-18, -27, -6]])


def test_boxes_without_area_have_no_overlap_even_with_themselves():
    padding = np.zeros((2, 4), np.float32)
    np.testing.assert_array_equal(pairwise(iou, padding, padding), np.zeros((2, 2)))
    np.testing.assert_array_equal(
        pairwise(ioa, np.float32([[0, 0, 1, 1]]), padding), np.zeros((1, 2))
    )


def test_boxes_that_touch_along_an_edge_have_iou_zero():
    assert iou(np.float32([0, 0, 1, 1]), np.float32([0, 1, 1, 2])) == 0


def test_giou_equals_the_published_table():
    # Equal boxes: 1.  [5,7,7,9] and [5,11,7,13]: hull 2 * 6 = 12, union 8, so 0 - 4/12.
    pairs = giou(np.float32([5, 7, 7, 9]), np.float32([[5, 7, 7, 9], [5, 11, 7, 13]]))
    np.testing.assert_allclose(pairs, [1, -1 / 3], rtol=1e-6)
    # A point and a square: hull 100, union 25, so 0 - 75/100 (row 21).
    np.testing.assert_allclose(giou(np.zeros(4), np.float32([5, 5, 10, 10])), -0.75, rtol=1e-6)


def test_iou_and_giou_equal_the_reference_losses():
    losses = golden.load("boxes_losses.json")
    some, others = (np.asarray(losses["inputs"][name][0]) for name in ("iou_b1", "iou_b2"))
    weights = np.asarray(losses["inputs"]["box_weights"][0])
    np.testing.assert_allclose((1 - iou(some, others)) * weights, losses["iou"], rtol=1e-6)
    np.testing.assert_allclose((1 - giou(some, others)) * weights, losses["giou"][0], rtol=1e-6)


def test_the_gradient_of_iou_is_finite_for_boxes_without_area():
    gradient = jax.grad(lambda box: iou(box, np.zeros(4, np.float32)))(np.zeros(4, np.float32))
    assert np.isfinite(gradient).all()


def test_clipping_moves_edges_onto_the_window():
    boxes = np.float32([[0, 0, 10, 10], [1, 1, 2, 2], [6, 5, 7, 6]])
    clipped = clip_to_window(boxes, np.float32([5, 4, 8, 7]))
    # The second box lies outside and shrinks to the nearest corner.
    np.testing.assert_array_equal(clipped, [[5, 4, 8, 7], [5, 4, 5, 4], [6, 5, 7, 6]])


def test_the_window_becomes_the_unit_square():
    boxes = np.float32([[5, 4, 8, 7], [6.5, 4, 8, 5.5]])
    framed = change_frame(boxes, boxes[0])
    # Half of the height is 1.5 of 3, half of the width likewise.
    np.testing.assert_allclose(framed, [[0, 0, 1, 1], [0.5, 0, 1, 0.5]])


def test_a_wrong_shape_is_found_while_tests_run():
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'boxes'"):
        area(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("function", [iou, ioa, giou])
def test_pairwise_agrees_with_one_pair_at_a_time(function):
    rng = np.random.default_rng(0)
    some, others = golden.random_boxes(rng, 2, 3), golden.random_boxes(rng, 2, 5)
    matrix = pairwise(function, some, others)
    assert matrix.shape == (2, 3, 5)
    np.testing.assert_allclose(matrix[1, 2, 4], function(some[1, 2], others[1, 4]), rtol=1e-6)


# ---- ATSS, task-aligned matching, distributions and quality losses in small cases ----------------


SIZE = (64, 64)


def grid_of(stride, side):
    """Square anchors `[A, 4]` in pixels, centred at multiples of the stride."""
    places = np.arange(0, SIZE[0], stride)
    rows, columns = np.meshgrid(places, places, indexing="ij")
    centers = np.stack([rows.ravel(), columns.ravel()], axis=1)
    return np.concatenate([centers - side / 2, centers + side / 2], axis=1).astype(np.float32)


FINE, COARSE = grid_of(8, 16), grid_of(16, 32)
ANCHORS = np.concatenate([FINE, COARSE])


def atss(boxes, valid, **options):
    boxes = jnp.asarray(boxes, jnp.float32) / 64
    anchors = jnp.asarray(ANCHORS) / 64
    rows = Rows(
        lambda row: iou(boxes[row], anchors),
        np.array(valid),
        len(boxes),
        boxes,
        anchors,
        Frame(SIZE, (len(FINE), len(COARSE))),
    )
    return np.asarray(atss_match(rows, **options))


def test_a_box_like_an_anchor_gets_it():
    matches = atss([[16, 16, 48, 48]], [True])
    best = len(FINE) + 2 * 4 + 2
    assert matches[best] == 0
    # The threshold of the box, of candidates of both maps, excludes most of them.
    assert 1 <= (matches == 0).sum() <= 9


def test_boxes_without_weight_get_no_anchor():
    assert (atss([[16, 16, 48, 48]], [False]) == BACKGROUND).all()
    assert (atss([[0, 0, 0, 0]], [False]) == BACKGROUND).all()


def test_an_anchor_of_two_boxes_goes_to_the_one_that_it_overlaps_more():
    near, far = [14, 14, 50, 50], [16, 16, 48, 48]
    assert set(atss([near, far], [True, True])) == {BACKGROUND, 1}
    # Of two equal boxes the first one gets all anchors.
    assert set(atss([far, far], [True, True])) == {BACKGROUND, 0}


def test_fewer_anchors_than_candidates_are_all_candidates():
    assert (atss([[16, 16, 48, 48]], [True], candidates=100) == 0).any()


def aligned(boxes, classes, valid, anchors, scores, predicted):
    """Returns the matches `[A]` of the task-aligned matcher, in pixels, and their targets `[A]`."""
    boxes, anchors = (jnp.asarray(rows, jnp.float32) for rows in (boxes, anchors))
    scores, predicted = (jnp.asarray(rows, jnp.float32) for rows in (scores, predicted))
    classes = jnp.asarray(classes, jnp.int32)
    rows = Rows(
        lambda row: iou(boxes[row], anchors), valid, len(boxes), boxes, anchors, Frame((1, 1))
    )
    given = rows._replace(classes=classes, predicted=Predicted(predicted, scores))
    matches = task_aligned_match(given)
    row = jnp.maximum(matches, 0)
    own_scores = jnp.take_along_axis(scores, classes[row][:, None], axis=1)[:, 0]
    overlaps = iou(predicted, boxes[row])
    return matches, alignment_targets(
        matches, own_scores, overlaps, len(boxes), alpha=1.0, beta=6.0
    )


def test_alignment_is_scaled_to_the_largest_overlap():
    boxes = np.array([[8, 8, 40, 40], [0, 0, 0, 0]], np.float32)
    random = np.random.default_rng(0)
    scores = random.random((len(ANCHORS), 3)).astype(np.float32)
    predicted = (boxes[0] + random.normal(0, 3, (len(ANCHORS), 4))).astype(np.float32)
    valid = np.array([True, False])
    matches, quality = map(np.asarray, aligned(boxes, [2, 0], valid, ANCHORS, scores, predicted))
    assert set(matches) == {BACKGROUND, 0}
    assert (matches == 0).sum() <= 13
    assert (quality[matches == BACKGROUND] == 0).all()
    overlaps = np.asarray(iou(boxes[0], predicted))[matches == 0]
    assert quality.max() == pytest.approx(overlaps.max(), rel=1e-5)


def test_a_whole_distance_is_one_bin():
    logits = np.random.default_rng(0).normal(size=(5, 17)).astype(np.float32)
    targets = np.array([0, 3, 8, 15, 16])
    expected = -np.asarray(jax.nn.log_softmax(logits))[np.arange(5), targets]
    np.testing.assert_allclose(distribution_focal_loss(logits, targets), expected, rtol=1e-6)


def test_the_mean_of_a_sharp_distribution_is_its_bin():
    logits = 100.0 * np.eye(8, dtype=np.float32)[[1, 0, 7, 4]]
    assert mean_distances(logits.reshape(1, -1), bins=8).tolist() == [[1, 0, 7, 4]]


def test_distances_lead_back_to_boxes():
    boxes = np.array([[2, 3, 10, 12], [0, 0, 40, 40]], np.float32)
    points = np.array([[5, 5], [20, 10]], np.float32)
    distances = encode_distances(boxes, points)
    assert distances.tolist() == [[3, 2, 5, 7], [20, 10, 20, 30]]
    assert np.array_equal(decode_distances(distances, points), boxes)
    assert np.asarray(encode_distances(boxes, points, longest=16.0)).max() == np.float32(15.9)


def test_centerness_is_one_in_the_middle_and_nothing_outside():
    box = np.array([0, 0, 10, 20], np.float32)
    points = np.array([[5, 10], [5, 5], [0, 10], [-1, 10]], np.float32)
    computed = centerness(box, points)
    np.testing.assert_allclose(computed, [1.0, np.sqrt(1 / 3), 0.0, 0.0], rtol=1e-6)
    slopes = jax.grad(lambda boxes: centerness(boxes, points).sum())(np.tile(box, (4, 1)))
    assert np.isfinite(slopes).all()


def test_a_student_like_its_teacher_has_no_loss():
    logits = np.random.default_rng(0).normal(size=(3, 17)).astype(np.float32)
    np.testing.assert_allclose(distillation_loss(logits, logits), np.zeros(3), atol=1e-6)
    assert (distillation_loss(logits, -logits) > 0).all()


def test_quality_losses_vanish_at_the_target():
    logits = np.array([[[-1.0, 0.5]]], np.float32)
    probabilities = np.asarray(jax.nn.sigmoid(logits))
    ones = np.ones((1, 1), np.float32)
    assert quality_focal_loss(logits, probabilities, ones) == pytest.approx(0, abs=1e-7)


def test_varifocal_loss_weighs_objects_by_quality():
    logits = np.array([[[0.3, -0.7]]], np.float32)
    targets = np.array([[[0.8, 0.0]]], np.float32)
    entropy = np.asarray(sigmoid_cross_entropy(logits, targets))[0, 0]
    share = float(jax.nn.sigmoid(-0.7))
    expected = 0.8 * entropy[0] + 0.75 * share**2 * entropy[1]
    losses = varifocal_loss(logits, targets, np.ones((1, 1), np.float32))
    assert losses == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("first", [[0, 0, 10, 10], [5, 0, 5, 10]])
def test_complete_iou_is_finite_for_equal_boxes_and_boxes_without_height(first):
    boxes = np.array([[first]], np.float32)
    target, ones = np.array([[[0, 0, 10, 10]]], np.float32), np.ones((1, 1), np.float32)
    loss, slopes = jax.value_and_grad(lambda x: ciou_loss(x, target, ones).sum())(boxes)
    assert np.isfinite(loss)
    assert np.isfinite(slopes).all()
