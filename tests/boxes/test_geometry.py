import jax
import jaxtyping
import numpy as np
import pytest

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
