from functools import partial

import jax
import numpy as np
import pytest

from stillbox.boxes.coders import (
    class_curve_scores,
    class_platt_scores,
    curve_scores,
    decode_faster_rcnn,
    decode_mean_stddev,
    decode_square,
    encode_faster_rcnn,
    encode_mean_stddev,
    encode_square,
    platt_scores,
)
from tests.boxes import golden

BOXES = np.float32([[10, 10, 20, 15], [0.2, 0.1, 0.5, 0.4]])
ANCHORS = np.float32([[15, 12, 30, 18], [0.1, 0, 0.7, 0.9]])
UNIT = np.float32([0, 0, 1, 1])
PLAIN = (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "scales, deltas",
    [
        # First row: (15 - 22.5) / 15, (12.5 - 15) / 6, ln(10 / 15), ln(5 / 6).
        (
            PLAIN,
            [[-0.5, -0.416666, -0.405465, -0.182321], [-0.083333, -0.222222, -0.693147, -1.098612]],
        ),
        (
            (2.0, 3.0, 4.0, 5.0),
            [[-1, -1.25, -1.62186, -0.911608], [-0.166667, -0.666667, -2.772588, -5.493062]],
        ),
    ],
)
def test_deltas_equal_the_published_table_and_decode_inverts(scales, deltas):
    np.testing.assert_allclose(encode_faster_rcnn(BOXES, ANCHORS, scales=scales), deltas, atol=2e-6)
    np.testing.assert_allclose(
        decode_faster_rcnn(np.float32(deltas), ANCHORS, scales=scales), BOXES, atol=2e-5
    )


def test_a_box_without_height_has_a_finite_delta():
    # 10.0000001 is 10 in float32, so the height is 1e-8: ln(1e-8 / 15) = -21.1287 (row 9).
    box = np.array([10, 10, 10.0000001, 20])
    deltas = encode_faster_rcnn(box, np.float32([15, 12, 30, 18]), scales=PLAIN)
    np.testing.assert_allclose(deltas, [-0.833333, 0, -21.128731, 0.510826], rtol=1e-4)


@pytest.mark.parametrize("encode", [encode_faster_rcnn, partial(encode_square, scales=(1, 1, 1))])
def test_padding_and_anchors_without_area_have_finite_codes(encode):
    box = np.float32([0.1, 0.1, 0.3, 0.3])
    assert np.isfinite(encode(np.zeros(4), box)).all()
    assert np.isfinite(encode(box, np.zeros(4))).all()


def test_an_inverted_box_has_a_code_that_is_not_a_number():
    assert np.isnan(encode_faster_rcnn(np.float32([0.5, 0.1, 0.2, 0.3]), UNIT)[2])


def test_a_code_of_zeros_is_the_anchor():
    anchors = golden.ssd_300_anchors()
    decoded = decode_faster_rcnn(np.zeros_like(anchors), anchors)
    np.testing.assert_allclose(decoded, anchors, atol=1e-7)


def test_decoding_inverts_encoding_for_random_boxes():
    rng = np.random.default_rng(0)
    boxes, anchors = golden.random_boxes(rng, 500), golden.random_boxes(rng, 500)
    decoded = decode_faster_rcnn(encode_faster_rcnn(boxes, anchors), anchors)
    np.testing.assert_allclose(decoded, boxes, atol=2e-6)


@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (2.0, 3.0, 4.0)])
def test_a_square_code_is_the_shift_and_growth_of_the_squares_of_equal_area(scales):
    # Row 1: areas 50 and 90, sides 7.071068 and 9.486833; shifts -7.5 and -2.5 over the latter,
    # ln(7.071068 / 9.486833). Row 2: sides .3 and sqrt(.54) = .734847; -.05, -.2; ln(.408248).
    plain = np.array([[-0.790569, -0.263523, -0.293893], [-0.068041, -0.272166, -0.895880]])
    deltas = encode_square(BOXES, ANCHORS, scales=scales)
    np.testing.assert_allclose(deltas, plain * scales, atol=1e-5)
    # Decoded, the box has its centre and area, but is square: row 1 is 7.071068 around (15, 12.5).
    half = 7.071068 / 2
    expected = [[15 - half, 12.5 - half, 15 + half, 12.5 + half], BOXES[1]]
    decoded = decode_square(deltas, ANCHORS, scales=scales)
    np.testing.assert_allclose(decoded, expected, rtol=1e-5)


def test_mean_stddev_deltas_are_edge_distances_over_the_deviation():
    # [.5, .5, .9, .9] less [.5, .5, 1, .8] is [0, 0, -.1, .1] .
    box, anchor = np.float32([[0.5, 0.5, 0.9, 0.9], [0.5, 0.5, 1, 0.8]])
    deltas = encode_mean_stddev(box, anchor, stddev=0.1)
    np.testing.assert_allclose(deltas, [0, 0, -1, 1], atol=1e-6)
    np.testing.assert_allclose(decode_mean_stddev(deltas, anchor, stddev=0.1), box, rtol=1e-6)


def test_edges_that_belong_to_a_box_make_it_a_pixel_larger():
    # From RetinaNet for TPU. Box 101 x 201, anchor 89 x 171 pixels; centres 4 and 5.5
    # apart: 4 / 89, 5 / 171 (120.5 - 115.5), ln(101 / 89), ln(201 / 171).
    box, anchor = np.float32([[10, 20, 110, 220], [12, 30, 100, 200]])
    deltas = encode_faster_rcnn(box, anchor, scales=PLAIN, pixel=(1, 1))
    np.testing.assert_allclose(deltas, [0.0449438, 0.0292398, 0.1264841, 0.1616414], atol=1e-6)
    decoded = decode_faster_rcnn(deltas, anchor, scales=PLAIN, pixel=(1, 1))
    np.testing.assert_allclose(decoded, box, rtol=1e-5)
    zero = decode_faster_rcnn(np.zeros(4), anchor, scales=PLAIN, pixel=(1, 1))
    np.testing.assert_allclose(zero, anchor, rtol=1e-6)


def test_deltas_without_the_pixel_decode_with_it_to_a_shifted_box():
    # The original's encoding and decoding differ by a part of a pixel.
    box, anchor = np.float32([[10, 20, 110, 220], [12, 30, 100, 200]])
    deltas = encode_faster_rcnn(box, anchor, scales=PLAIN)
    np.testing.assert_allclose(deltas, [0.0454545, 0.0294118, 0.1278334, 0.162519], atol=1e-6)
    decoded = decode_faster_rcnn(deltas, anchor, scales=PLAIN, pixel=(1, 1))
    np.testing.assert_allclose(decoded, [9.97728, 19.94117, 110.11363, 220.11765], atol=2e-5)


def test_a_limit_of_ratios_limits_the_box_and_only_from_above():
    # Codes are divided by their scale 5 first: 4 means .8, limited to ln 2, and -4 means -.8.
    decoded = decode_faster_rcnn(np.float32([0, 0, 4, -4]), UNIT, max_log_ratio=np.log(2))
    half = np.exp(-0.8) / 2
    np.testing.assert_allclose(decoded, [-0.5, 0.5 - half, 1.5, 0.5 + half], rtol=1e-6)
    # Without a limit 89 * 5 overflows.
    high = np.float32([0, 0, 445, 0])
    assert not np.isfinite(decode_faster_rcnn(high, UNIT)).all()
    limited = decode_faster_rcnn(high, UNIT, max_log_ratio=4.135)
    assert np.isfinite(limited).all()


def test_a_curve_is_straight_between_its_points_and_flat_beyond_them():
    # Between (.2, .1) and (.6, .9) a score of .3 is a quarter of the way: .1 + .2.
    scores = np.float32([[0.0, 0.2, 0.3], [0.6, 0.7, 1.0]])
    result = curve_scores(scores, inputs=np.float32([0.2, 0.6]), outputs=np.float32([0.1, 0.9]))
    np.testing.assert_allclose(result, [[0.1, 0.1, 0.3], [0.9, 0.9, 0.9]], rtol=1e-6)


def test_a_curve_of_one_point_is_constant():
    scores, point, value = np.float32([0.1, 0.9]), np.float32([0.5]), np.float32([0.4])
    np.testing.assert_allclose(curve_scores(scores, inputs=point, outputs=value), [0.4, 0.4])


def test_classes_have_separate_curves_and_others_stay():
    scores = np.float32([[0.25, 0.5, 0.75, 0.5]])
    # Class 3: (0, 0) to (1, .5), the last point repeated; class 1: through (.5, .8).
    result = jax.jit(class_curve_scores)(
        scores,
        class_channels=np.array([3, 1]),
        inputs=np.float32([[0, 1, 1], [0, 0.5, 1]]),
        outputs=np.float32([[0, 0.5, 0.5], [0, 0.8, 1]]),
    )
    np.testing.assert_allclose(result, [[0.25, 0.8, 0.75, 0.25]], rtol=1e-6)
    # Beyond a repeated point its value holds.
    result = class_curve_scores(
        np.float32([[0.7]]),
        class_channels=np.array([0]),
        inputs=np.float32([[0, 0.5, 0.5]]),
        outputs=np.float32([[0, 0.2, 0.2]]),
    )
    np.testing.assert_allclose(result, [[0.2]], rtol=1e-6)


def test_platt_scaling_by_hand():
    # 1 / (1 + e^(-1 * 0 + 0)); 1 / (1 + e^(-2 * .5 + 1)); 1 / (1 + e^(-2 * 1 + 1)) = .731059.
    np.testing.assert_allclose(platt_scores(np.zeros(1), a=-1.0, b=0.0), [0.5])
    scores = platt_scores(np.float32([0.5, 1.0]), a=-2.0, b=1.0)
    np.testing.assert_allclose(scores, [0.5, 0.731059], rtol=1e-6)


def test_platt_scaling_of_some_classes_leaves_the_others():
    scores = np.float32([[0.3, 1.0, 0.6], [0.3, 0.5, 0.6]])
    result = class_platt_scores(
        scores, class_channels=np.array([1]), a=np.float32([-2]), b=np.float32([1])
    )
    np.testing.assert_allclose(result, [[0.3, 0.731059, 0.6], [0.3, 0.5, 0.6]], rtol=1e-6)
