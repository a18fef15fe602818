"""Default boxes against the executed original ."""

import hashlib

import numpy as np
import pytest

from stillbox.boxes.default_boxes import (
    DefaultBoxSpec,
    anchor_major_order,
    default_boxes,
    default_boxes_in_center_form,
)

IMAGE = (300, 300)
SHAPES = [(side, side) for side in (38, 19, 10, 5, 3, 1)]
SIZES = (21, 45, 99, 153, 207, 261, 315)
STEPS = (8, 16, 32, 64, 100, 300)
RATIOS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
SPECS = [DefaultBoxSpec(SIZES[k], SIZES[k + 1], STEPS[k], RATIOS[k]) for k in range(6)]


def centered() -> np.ndarray:
    return default_boxes_in_center_form(SHAPES, IMAGE, SPECS, clip=True).astype(np.float32)


def digest(boxes: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(boxes).tobytes()).hexdigest()


def test_all_boxes_are_those_of_the_original_bit_by_bit():
    assert centered().shape == (8732, 4)
    expected = "acd1289ec74a4695cf43421a4b94f536c0154b16640c8982427d0d3785715e6d"
    assert digest(centered()) == expected


def test_the_older_order_is_that_of_the_original_bit_by_bit():
    boxes = centered()[anchor_major_order(SHAPES, SPECS)]
    expected = "55305b8c6f62f46bed107bec1388425f1e35d641097cc3020d99f6378b973674"
    assert digest(boxes) == expected
    # One kind of box at all 38 x 38 = 1444 locations, then the next kind.
    np.testing.assert_allclose(boxes[1], [0.0133333, 0.04, 0.07, 0.07], atol=1e-6)
    np.testing.assert_allclose(boxes[1444, 2:], 0.10246951, atol=1e-7)
    np.testing.assert_allclose(boxes[2888, 2:], [0.0495, 0.0990], atol=5e-5)


@pytest.mark.parametrize(
    "index, row",
    [
        # Centre .5 * 8 / 300, side 21 / 300; the large square's sqrt(21 * 45) / 300.
        (0, (0.01333333, 0.01333333, 0.07, 0.07)),
        (1, (0.01333333, 0.01333333, 0.10246951, 0.10246951)),
        # Twice as wide as high: .07 / sqrt(2) and .07 * sqrt(2).
        (2, (0.01333333, 0.01333333, 0.04949747, 0.09899495)),
        (3, (0.01333333, 0.01333333, 0.09899495, 0.04949747)),
        (4, (0.01333333, 0.04, 0.07, 0.07)),
        (5776, (0.02666667, 0.02666667, 0.15, 0.15)),
        (5780, (0.02666667, 0.02666667, 0.08660254, 0.25980762)),
        (8692, (0.16666667, 0.16666667, 0.69, 0.69)),
        (8729, (0.5, 0.5, 0.9557719, 0.9557719)),
        # .87 * sqrt(2) = 1.23 is cut to 1.
        (8730, (0.5, 0.5, 0.6151829, 1.0)),
    ],
)
def test_single_boxes_equal_the_original(index, row):
    np.testing.assert_allclose(centered()[index], row, atol=1e-7)


def test_sums_of_all_columns_equal_the_original():
    edges = default_boxes(SHAPES, IMAGE, SPECS, clip=True)
    assert edges.dtype == np.float32
    np.testing.assert_allclose(
        edges.sum(axis=0, dtype=np.float64), [3857.1628, 3857.1628, 5029.1305, 5029.1305], atol=1e-3
    )
    # Clipping is done before the edges are taken, which therefore lie outside.
    assert edges.min() == pytest.approx(-0.335, abs=1e-3)
    assert edges.max() == pytest.approx(1.402, abs=1e-3)


def test_without_clipping_centres_leave_the_image():
    # Level 5: ten steps of 32 pixels are 320, and the last centre lies at 304.
    boxes = default_boxes_in_center_form(SHAPES, IMAGE, SPECS, clip=False)
    assert boxes[:, 0].max() == pytest.approx(304 / 300)
    assert centered()[:, 0].max() == 1.0


def test_images_that_are_not_square_have_square_boxes_in_pixels():
    (box,) = default_boxes_in_center_form(
        [(1, 1)], (100, 200), [DefaultBoxSpec(20, 45, 40, ())], clip=False
    )[:1]
    # Centre 20 of 100 rows and of 200 columns, side 20.
    np.testing.assert_allclose(box, [0.2, 0.1, 0.2, 0.1])
