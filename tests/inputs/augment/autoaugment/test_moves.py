"""Rotation, shears and shifts: image and boxes together."""

import numpy as np
import pytest

from stillbox.inputs.augment.autoaugment import operate
from stillbox.inputs.augment.autoaugment.boxes import rotate_boxes, shear_boxes, translate_boxes
from stillbox.inputs.augment.autoaugment.warps import FILL, rotate, shear, translate
from tests.inputs.augment.samples import rng, sample

GRID = np.repeat(np.arange(9, dtype=np.uint8).reshape(3, 3, 1), 3, axis=2)


def first_channel(image):
    return image[..., 0].tolist()


def test_a_quarter_turn_against_the_clock():
    # From the unit tests of TF Vision's `augment.py`.
    assert first_channel(rotate(GRID, 90)) == [[2, 5, 8], [1, 4, 7], [0, 3, 6]]


def test_shifts_move_up_and_left():
    assert first_channel(translate(GRID, 1, axis=0)) == [[3, 4, 5], [6, 7, 8], [FILL] * 3]
    assert first_channel(translate(GRID, -1, axis=1)) == [[FILL, 0, 1], [FILL, 3, 4], [FILL, 6, 7]]


@pytest.mark.parametrize("pixels", [3, -3, 250, -250])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_shift_by_the_whole_image_leaves_gray(pixels, axis):
    assert (translate(GRID, pixels, axis) == FILL).all()


def test_shears_move_each_row_or_column_by_its_number():
    # Row 1 reads column x + .5, away from zero x + 1; row 2 at x + 1.
    assert first_channel(shear(GRID, 0.5, axis=1)) == [[0, 1, 2], [4, 5, FILL], [7, 8, FILL]]
    # Row 1 reads x - .5: away from zero column -1 for x = 0, then 1 for 1 and 2 for 2 ...
    # (.5 and 1.5 are rounded up).
    assert first_channel(shear(GRID, -0.5, axis=1)) == [[0, 1, 2], [FILL, 4, 5], [FILL, 6, 7]]
    # The same with columns.
    turned = shear(GRID.transpose(1, 0, 2), 0.5, axis=0)
    assert first_channel(turned.transpose(1, 0, 2)) == [[0, 1, 2], [4, 5, FILL], [7, 8, FILL]]


def box(*corners):
    return np.array([corners], np.float32)


def test_a_quarter_turn_of_a_box():
    # Of 40 x 80 pixels rows -10 to 0 and columns -20 to 20 from the centre. What lies to the right
    # goes up: rows -20 to 20, columns -10 to 0.
    turned = rotate_boxes(box(0.25, 0.25, 0.5, 0.75), (40, 80), 90)
    np.testing.assert_allclose(turned, box(0, 0.375, 1, 0.5), atol=1e-6)


def test_corners_are_truncated_to_pixels_without_motion_too():
    # Of 10 x 10: .19 * 10 and .99 * 10 are cut to 1 and 9.
    before, after = box(0.19, 0.19, 0.99, 0.99), box(0.1, 0.1, 0.9, 0.9)
    np.testing.assert_allclose(translate_boxes(before, (10, 10), 0, axis=1), after)
    np.testing.assert_allclose(shear_boxes(before, (10, 10), 0, axis=0), after)
    # From the centre: -3.1 and 4.9 are cut to -3 and 4.
    np.testing.assert_allclose(rotate_boxes(before, (10, 10), 0), box(0.2, 0.2, 0.9, 0.9))


def test_a_shear_of_a_box():
    # Of 100 x 100: x' = x - .3 y. (20, 40) -> 34 and (20, 80) -> 74 above, 22 and 62 in row 60.
    sheared = shear_boxes(box(0.2, 0.4, 0.6, 0.8), (100, 100), 0.3, axis=1)
    np.testing.assert_allclose(sheared, box(0.2, 0.22, 0.6, 0.74), atol=1e-6)


@pytest.mark.parametrize(
    ("pixels", "axis", "expected"),
    [
        (50, 0, (0, 0.4, 0.05, 0.8)),
        (-90, 0, (0.95, 0.4, 1, 0.8)),
        (90, 1, (0.2, 0, 0.4, 0.05)),
        (-90, 1, (0.2, 0.95, 0.4, 1)),
    ],
)
def test_a_box_that_leaves_the_image_stays_at_its_edge(pixels, axis, expected):
    moved = translate_boxes(box(0.2, 0.4, 0.4, 0.8), (100, 100), pixels, axis)
    np.testing.assert_allclose(moved, box(*expected), atol=1e-6)


@pytest.mark.parametrize(
    "name",
    ["Rotate_BBox", "TranslateX_BBox", "TranslateY_BBox", "ShearX_BBox", "ShearY_BBox"],
)
@pytest.mark.parametrize("level", [1, 4, 10])
def test_boxes_move_with_their_objects(name, level):
    before = sample(boxes=[(0.4, 0.45, 0.6, 0.6)], size=(600, 800))
    before.image[:] = 0
    before.image[240:360, 360:480] = 255
    ways = set()
    for number in range(8):
        after = operate(name, level, before, rng(number))
        rows, columns = np.nonzero((after.image == 255).all(axis=2))
        object_box = [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]
        shown = after.boxes[0] * [600, 800, 600, 800]
        # A rotated rectangle has corners of one pixel, and a position is cut twice.
        np.testing.assert_allclose(shown, object_box, atol=2.5)
        ways.add(tuple(object_box))
    # To either side.
    assert len(ways) == 2
