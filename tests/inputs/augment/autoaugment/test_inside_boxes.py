"""Patches, and operations on the pixels of boxes alone."""

import numpy as np
import pytest

from stillbox.inputs.augment.autoaugment import operate
from stillbox.inputs.augment.autoaugment.operations import take_step
from stillbox.inputs.augment.autoaugment.patches import change_inside_boxes, cutout, cutout_at_a_box
from stillbox.inputs.augment.autoaugment.policies import Step
from stillbox.inputs.augment.autoaugment.warps import FILL
from tests.inputs.augment.samples import rng, sample

INSIDE = [
    "Rotate_Only_BBoxes",
    "ShearX_Only_BBoxes",
    "ShearY_Only_BBoxes",
    "TranslateX_Only_BBoxes",
    "TranslateY_Only_BBoxes",
    "Flip_Only_BBoxes",
    "Solarize_Only_BBoxes",
    "Equalize_Only_BBoxes",
    "Cutout_Only_BBoxes",
]


def black(*size):
    return np.zeros((*size, 3), np.uint8)


def covered(image):
    """The extent of the gray patch: first row and column, number of rows and columns."""
    rows, columns = np.nonzero((image == FILL).all(axis=2))
    if not len(rows):
        return None
    height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert len(rows) == height * width
    return rows.min(), columns.min(), height, width


def test_a_patch_has_twice_the_half_and_may_stick_out():
    found = {covered(cutout(black(30, 50), 10, rng(number))) for number in range(400)}
    assert max(height for *_, height, _ in found) == max(width for *_, width in found) == 20
    # About the first pixel 10 are left, about the last one 11.
    assert min(height for *_, height, _ in found) == min(width for *_, width in found) == 10


def test_no_half_no_patch():
    assert covered(cutout(black(30, 50), 0, rng())) is None


def test_a_patch_at_a_box_is_about_a_pixel_of_it():
    # Rows 20 to 60 of 100, columns 40 to 80 of 200, both ends included: 41 pixels each way, and
    # int(.75 * 20.5) = 15.
    boxes = np.array([[0.2, 0.2, 0.6, 0.4]], np.float32)
    found = [covered(cutout_at_a_box(black(100, 200), boxes, 0.75, rng(n))) for n in range(600)]
    assert {(height, width) for *_, height, width in found} == {(30, 30)}
    assert {y + 15 for y, *_ in found} == set(range(20, 61))
    assert {x + 15 for _, x, *_ in found} == set(range(40, 81))


def test_a_patch_goes_to_any_of_the_boxes():
    boxes = np.array([[0.1, 0.1, 0.2, 0.2], [0.8, 0.8, 0.9, 0.9]], np.float32)
    found = [covered(cutout_at_a_box(black(99, 99), boxes, 0.5, rng(n))) for n in range(100)]
    first = sum(y < 50 for y, *_ in found)
    assert 30 < first < 70  # deviation 5


def test_without_boxes_there_is_no_patch():
    image = black(9, 9)
    assert cutout_at_a_box(image, np.zeros((0, 4), np.float32), 0.75, rng()) is image


@pytest.mark.parametrize("name", INSIDE)
def test_only_pixels_inside_boxes_change(name):
    # Of 40 x 80: rows 10 to 30, columns 20 to 60, ends included.
    before = sample(boxes=[(0.25, 0.25, 0.75, 0.75)], size=(40, 80))
    after = operate(name, 8, before, rng(3))
    changed = (after.image != before.image).any(axis=2)
    assert changed[10:31, 20:61].mean() > 0.2
    changed[10:31, 20:61] = False
    assert not changed.any()
    assert np.array_equal(after.boxes, before.boxes)


def test_a_flip_includes_the_last_row_and_column():
    before = sample(boxes=[(0.25, 0.25, 0.75, 0.75)], size=(40, 80))
    after = operate("Flip_Only_BBoxes", 0, before, rng())
    assert np.array_equal(after.image[10:31, 20:61], before.image[10:31, 20:61][:, ::-1])


def test_a_box_at_the_edge_ends_with_the_image():
    before = sample(boxes=[(0.5, 0.5, 1.0, 1.0)], size=(40, 80))
    after = operate("Flip_Only_BBoxes", 0, before, rng())
    assert np.array_equal(after.image[20:, 40:], before.image[20:, 40:][:, ::-1])


def test_each_box_has_a_third_of_the_probability():
    # 200 boxes of one pixel, far apart.
    corners = [(y / 100, x / 40) for y in range(0, 100, 10) for x in range(0, 40, 2)]
    before = sample(boxes=[(y, x, y, x) for y, x in corners], size=(100, 40))
    before.image[:] = 200
    counts = []
    for number in range(20):
        after = take_step(Step("Solarize_Only_BBoxes", 0.6, 8), before, rng(number))
        # 255 - 200 = 55: 200 is not below 204. Level 0 inverts all.
        assert (after.image == 200).all()
        after = take_step(Step("Solarize_Only_BBoxes", 0.6, 0), before, rng(number))
        counts.append((after.image[..., 0] == 55).sum())
    # 4000 draws with .2: 800, deviation 25.
    assert 700 < sum(counts) < 900


def test_boxes_are_changed_one_after_the_other_in_any_order():
    before = sample(boxes=[(0, 0, 0.45, 0.45), (0, 0, 0.95, 0.95)], size=(20, 20))
    orders = set()
    for number in range(30):
        sizes, firsts = [], []

        def change(content, _, sizes=sizes, firsts=firsts):
            sizes.append(content.shape[0])
            firsts.append(int(content[0, 0, 0]))
            return np.full_like(content, 100 + len(sizes))

        after = change_inside_boxes(before, change, 1.0, rng(number))
        # The second sees what the first has done, and what it does stays.
        assert firsts[1] == 101
        assert after.image[0, 0, 0] == 102
        orders.add(tuple(sizes))
    assert orders == {(10, 20), (20, 10)}
