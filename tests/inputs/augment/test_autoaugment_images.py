"""Quirks and formulas by hand; the goldens have the rest.

Rotation, shears and shifts: image and boxes together.

Patches, and operations on the pixels of boxes alone.
"""

import numpy as np
import pytest

from stillbox.inputs.augment import autoaugment_images
from stillbox.inputs.augment.autoaugment import Step, operate, take_step
from stillbox.inputs.augment.autoaugment_images import (
    FILL,
    change_inside_boxes,
    cutout,
    cutout_at_a_box,
    rotate,
    rotate_boxes,
    shear,
    shear_boxes,
    translate,
    translate_boxes,
)
from tests.inputs.augment.samples import rng, sample


def gray(*rows):
    return np.repeat(np.array(rows, np.uint8)[..., None], 3, axis=2)


def one_channel(image):
    assert (image == image[..., :1]).all()
    return image[..., 0].tolist()


def test_no_bits_keep_the_greatest_one():
    # TensorFlow shifts by 7 at most, and so the upper bit stays.
    assert one_channel(autoaugment_images.posterize(gray([0, 127, 128, 255]), 0)) == [
        [0, 0, 128, 128]
    ]
    assert one_channel(autoaugment_images.posterize(gray([0, 127, 128, 255]), 8)) == [
        [0, 127, 128, 255]
    ]


def test_a_threshold_of_256_inverts_everything_as_0_does():
    image = gray([0, 100, 255])
    assert one_channel(autoaugment_images.solarize(image, 256)) == [[255, 155, 0]]
    assert one_channel(autoaugment_images.solarize(image, 0)) == [[255, 155, 0]]
    assert one_channel(autoaugment_images.solarize(image, 100)) == [[0, 155, 0]]
    assert one_channel(autoaugment_images.solarize(image, 101)) == [[0, 100, 0]]


def test_solarize_add_changes_what_is_below_128():
    assert one_channel(autoaugment_images.solarize_add(gray([0, 127, 128]), 110)) == [
        [110, 237, 128]
    ]


def test_contrast_is_about_white_for_all_but_tiny_images():
    # 480 x 640 / 256 = 1200, cut to 255. 255 + 1.9 (200 - 255) = 150.5; (100 - 255) is below 0.
    image = np.full((480, 640, 3), 200, np.uint8)
    image[0] = 100
    result = autoaugment_images.contrast(image, 1.9)
    assert result[1, 0].tolist() == [150] * 3
    assert result[0, 0].tolist() == [0] * 3
    # 2 x 256 / 256 = 2: 2 + .1 (200 - 2) = 21.8.
    assert (autoaugment_images.contrast(np.full((2, 256, 3), 200, np.uint8), 0.1) == 21).all()


def test_contrast_about_the_mean_keeps_the_mean():
    # Grays 100 and 200: mean 150, and 150 + 1.9 (200 - 150) = 245, 150 + 1.9 (100 - 150) = 55.
    image = gray([100, 200], [200, 100])
    assert one_channel(autoaugment_images.contrast_about_mean(image, 1.9)) == [[55, 245], [245, 55]]
    # Factor 0 leaves the mean alone: 100.5 is rounded up.
    assert one_channel(autoaugment_images.contrast_about_mean(gray([100, 101]), 0.0)) == [
        [101, 101]
    ]


def test_brightness_cuts_and_clips():
    assert one_channel(autoaugment_images.brightness(gray([9, 100, 200]), 1.9)) == [[17, 190, 255]]
    assert one_channel(autoaugment_images.brightness(gray([9, 100, 200]), 0.1)) == [[0, 10, 20]]


def test_color_interpolates_to_gray_and_extrapolates():
    image = np.array([[[200, 100, 0]]], np.uint8)
    # .2989 * 200 + .587 * 100 = 118.48; times 255.5 / 255 = 118.7, cut to 118.
    assert autoaugment_images.color(image, 0.0)[0, 0].tolist() == [118] * 3
    # 118 + 1.9 * 82 = 273.8, 118 - 1.9 * 18 = 83.8, 118 - 1.9 * 118 < 0
    assert autoaugment_images.color(image, 1.9)[0, 0].tolist() == [255, 83, 0]


def test_sharpness_smooths_the_inside():
    image = gray([0, 0, 0], [0, 130, 0], [0, 0, 26])
    # (5 * 130 + 26) / 13 = 52; the rim stays.
    smooth = [[0, 0, 0], [0, 52, 0], [0, 0, 26]]
    assert one_channel(autoaugment_images.sharpness(image, 0.0)) == smooth
    # 52 + 1.9 * 78 = 200.2
    assert one_channel(autoaugment_images.sharpness(image, 1.9))[1][1] == 200


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (9, 2)])
def test_an_image_without_an_inside_is_sharp_enough(size):
    image = np.arange(3 * size[0] * size[1], dtype=np.uint8).reshape(*size, 3)
    assert np.array_equal(autoaugment_images.sharpness(image, 0.1), image)


def test_rows_at_a_time_are_the_same_as_all_at_once(monkeypatch):
    image = np.random.default_rng(0).integers(0, 256, (50, 40, 3), np.uint8)
    whole = [
        change(image, 0.3) for change in (autoaugment_images.sharpness, autoaugment_images.color)
    ]
    monkeypatch.setattr("stillbox.inputs.augment.autoaugment_images._VALUES", 700)
    parts = [
        change(image, 0.3) for change in (autoaugment_images.sharpness, autoaugment_images.color)
    ]
    assert np.array_equal(whole, parts)


def test_auto_contrast_stretches_each_channel():
    image = np.array([[[50, 7, 0], [100, 7, 255], [150, 7, 10]]], np.uint8)
    # (100 - 50) * 255 / 100 = 127.5; a channel of one value stays.
    expected = [[[0, 7, 0], [127, 7, 255], [255, 7, 10]]]
    assert autoaugment_images.auto_contrast(image).tolist() == expected


def test_equalize_by_hand():
    # 2 x 255 pixels of 10, 20 and 30 each. Step (1530 - 510) // 255 = 4.
    # Of 10: (0 + 2) // 4 = 0; of 20: (510 + 2) // 4 = 128; of 30: (1020 + 2) // 4 = 255.
    image = gray([10] * 510, [20] * 510, [30] * 510)
    assert one_channel(autoaugment_images.equalize(image)) == [[0] * 510, [128] * 510, [255] * 510]
    # Too few pixels for a step.
    assert np.array_equal(autoaugment_images.equalize(image[:, :9]), image[:, :9])


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
    "name", ["Rotate_BBox", "TranslateX_BBox", "TranslateY_BBox", "ShearX_BBox", "ShearY_BBox"]
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
    patches = {covered(cutout(black(30, 50), 10, rng(number))) for number in range(400)}
    assert max(height for *_, height, _ in patches) == max(width for *_, width in patches) == 20
    # About the first pixel 10 are left, about the last one 11.
    assert min(height for *_, height, _ in patches) == min(width for *_, width in patches) == 10


def test_no_half_no_patch():
    assert covered(cutout(black(30, 50), 0, rng())) is None


def test_a_patch_at_a_box_is_about_a_pixel_of_it():
    # Rows 20 to 60 of 100, columns 40 to 80 of 200, both ends included: 41 pixels each way, and
    # int(.75 * 20.5) = 15.
    boxes = np.array([[0.2, 0.2, 0.6, 0.4]], np.float32)
    patches = [covered(cutout_at_a_box(black(100, 200), boxes, 0.75, rng(n))) for n in range(600)]
    assert {(height, width) for *_, height, width in patches} == {(30, 30)}
    assert {y + 15 for y, *_ in patches} == set(range(20, 61))
    assert {x + 15 for _, x, *_ in patches} == set(range(40, 81))


def test_a_patch_goes_to_any_of_the_boxes():
    boxes = np.array([[0.1, 0.1, 0.2, 0.2], [0.8, 0.8, 0.9, 0.9]], np.float32)
    patches = [covered(cutout_at_a_box(black(99, 99), boxes, 0.5, rng(n))) for n in range(100)]
    first = sum(y < 50 for y, *_ in patches)
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


@pytest.mark.parametrize(
    ("box", "rows", "columns"),
    [
        ((0.25, 0.25, 0.75, 0.75), slice(10, 31), slice(20, 61)),
        ((0.5, 0.5, 1.0, 1.0), slice(20, 40), slice(40, 80)),  # it ends with the image
    ],
)
def test_a_flip_includes_the_last_row_and_column(box, rows, columns):
    before = sample(boxes=[box], size=(40, 80))
    after = operate("Flip_Only_BBoxes", 0, before, rng())
    assert np.array_equal(after.image[rows, columns], before.image[rows, columns][:, ::-1])


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
