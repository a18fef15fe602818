import dataclasses

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.augment.crops import draw_window, ssd_iou_crop
from tests.inputs.augment.samples import augmented, rng, sample

CROP = schema.SsdIouCrop
SIZE = (300, 400)
SPREAD = ((0.1, 0.1, 0.5, 0.4), (0.3, 0.35, 0.8, 0.7), (0.55, 0.2, 0.6, 0.3))
MIDDLE = ((0.45, 0.45, 0.55, 0.55),)


def windows(settings, boxes, count=400, size=SIZE):
    """What different generators draw; None for the whole image."""
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return [draw_window(boxes, size, settings, rng(number)) for number in range(count)]


def iou(box, other):
    """The definition, for one pair, in plain numbers."""
    height = max(min(box[2], other[2]) - max(box[0], other[0]), 0)
    width = max(min(box[3], other[3]) - max(box[1], other[1]), 0)
    areas = [(corners[2] - corners[0]) * (corners[3] - corners[1]) for corners in (box, other)]
    return height * width / (sum(areas) - height * width)


def holds_centre(window, box):
    y, x = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return window[0] < y < window[2] and window[1] < x < window[3]


class Drawn(np.random.Generator):
    """Stands for a generator: the candidates' numbers are given, and it never takes the whole."""

    def __init__(self, *candidates):
        super().__init__(np.random.PCG64())
        self.candidates, self.draws = np.array(candidates), 0

    def random(self, size=None):
        if size is None:
            return 0.99
        self.draws += 1
        assert size == self.candidates.shape
        return self.candidates


# Height and width .5, corner at half of the two numbers that are drawn for it.
HALF = CROP(min_side=0.5, max_side=0.5, min_ious=(0.0,))


def chosen(settings, boxes, *candidates):
    """The window that is taken of candidates (height, width, y, x), each a number in 0..1."""
    settings = dataclasses.replace(
        settings, candidates=len(candidates), max_draws=1, whole_image_probability=0.5
    )
    return draw_window(np.array(boxes, np.float32), SIZE, settings, Drawn(*candidates))


# ---- which windows are valid ---------------------------------------------------------------------


def test_the_last_valid_candidate_is_taken():
    # At (0, 0), (.25, .25) and (.5, .5): the last one does not touch the box.
    corners = [(0, 0, 0, 0), (0, 0, 0.5, 0.5), (0, 0, 1, 1)]
    box = [[0.3, 0.3, 0.45, 0.45]]
    np.testing.assert_allclose(chosen(HALF, box, *corners), [0.25, 0.25, 0.75, 0.75])
    np.testing.assert_allclose(chosen(HALF, box, *corners[::-1]), [0, 0, 0.5, 0.5])
    assert chosen(HALF, box, corners[2]) is None


@pytest.mark.parametrize(("min_iou", "valid"), [(0.49, True), (0.5, False), (0.51, False)])
def test_an_iou_equal_to_the_bound_is_not_enough(min_iou, valid):
    # The box is the window's left half: IoU .125 / .25 = .5.
    settings = dataclasses.replace(HALF, min_ious=(min_iou,))
    assert (chosen(settings, [[0, 0, 0.5, 0.25]], (0, 0, 0, 0)) is not None) == valid


@pytest.mark.parametrize(("min_iou", "valid"), [(-1.0, True), (0.0, False)])
def test_bound_0_requires_all_boxes_touched_and_a_negative_one_nothing(min_iou, valid):
    settings = dataclasses.replace(HALF, min_ious=(min_iou,))
    boxes = [[0.1, 0.1, 0.3, 0.3], [0.5, 0.5, 1, 1]]  # the second one shares a corner point only
    assert (chosen(settings, boxes, (0, 0, 0, 0)) is not None) == valid


def test_one_centre_must_be_inside_and_the_edge_is_outside():
    nothing = dataclasses.replace(HALF, min_ious=(-1.0,))
    corner = (0, 0, 0, 0)
    assert chosen(nothing, [[0.4, 0.1, 0.6, 0.2]], corner) is None  # its centre is on y = .5
    assert chosen(nothing, [[0.375, 0.125, 0.5, 0.25], [0.6, 0.6, 1, 1]], corner) is not None


@pytest.mark.parametrize(("height", "width"), [(1.0, 0.0), (0.0, 1.0)])
def test_a_side_of_exactly_so_many_times_the_other_is_too_much(height, width):
    # Sides .5 and 1.
    settings = CROP(min_side=0.5, max_side=1.0, min_ious=(-1.0,))
    assert chosen(settings, MIDDLE, (height, width, 0.5, 0.5)) is None
    wider = dataclasses.replace(settings, max_aspect_ratio=2.001)
    assert chosen(wider, MIDDLE, (height, width, 0.5, 0.5)) is not None


@pytest.mark.parametrize("resize_to", [(300, 300), ()])
@pytest.mark.parametrize("min_iou", [0.0, 0.1, 0.3, 0.5])
def test_every_window_meets_the_conditions(min_iou, resize_to):
    boxes = np.array(SPREAD[:2] if min_iou < 0.3 else [(0.2, 0.1, 0.9, 0.8)], np.float32)
    settings = CROP(min_ious=(min_iou,), resize_to=resize_to)
    drawn = [window for window in windows(settings, boxes) if window is not None]
    assert len(drawn) > 150
    for window in drawn:
        height, width = window[2] - window[0], window[3] - window[1]
        assert height < 2 * width
        assert width < 2 * height
        assert window[:2].min() >= 0
        assert window[2:].max() <= 1
        assert min(iou(window, box) for box in boxes) > min_iou
        assert any(holds_centre(window, box) for box in boxes)


# ---- what is likely ------------------------------------------------------------------------------


def test_one_image_in_seven_stays_whole_where_windows_are_easy():
    # One small box in the middle: 50 candidates hardly ever fail, so the first draw decides.
    drawn = windows(CROP(min_ious=(-1.0,)), MIDDLE, 2100)
    assert abs(sum(window is None for window in drawn) - 300) < 70  # 4.4 standard deviations


def test_sides_are_uniform_in_their_range_as_far_as_the_aspect_ratio_lets_them():
    # Centres every .2: each window of .3 and more holds one, so that only the ratio decides.
    corners = np.arange(0.09, 1, 0.2)
    grid = [(y, x, y + 0.02, x + 0.02) for y in corners for x in corners]
    settings = CROP(min_ious=(-1.0,), candidates=1, max_draws=1, whole_image_probability=0.0)
    drawn = windows(settings, grid, 4000)
    kept = np.array([window for window in drawn if window is not None])
    # Sides are pairs in a square of .7 by .7. Beyond the ratio are two triangles with legs .2 and
    # .4: .08 of .49.
    assert abs(len(kept) / 4000 - (1 - 0.08 / 0.49)) < 0.025  # 4.3 standard deviations
    sides = kept[:, 2:] - kept[:, :2]
    assert 0.3 - 1e-9 <= sides.min() < 0.32
    assert 0.98 < sides.max() <= 1 + 1e-9
    ratio = sides[:, 0] / sides[:, 1]
    assert 1.9 < ratio.max() < 2
    assert 0.5 < ratio.min() < 0.53
    large = (sides > 0.6).all(axis=1).sum() / 4000
    assert abs(large - (0.4 / 0.7) ** 2) < 0.03  # 4 standard deviations


def test_windows_are_anywhere_in_the_free_space():
    settings = CROP(min_ious=(-1.0,), min_side=0.5, max_side=0.5)
    boxes = [(y, x, y + 0.01, x + 0.01) for y in (0.2, 0.7) for x in (0.2, 0.7)]
    kept = np.array([w for w in windows(settings, boxes, 1000) if w is not None])
    assert kept[:, :2].min() < 0.01
    assert kept[:, 2:].max() > 0.99
    np.testing.assert_allclose(kept[:, :2].mean(axis=0), 0.25, atol=0.025)


def test_every_bound_is_as_likely():
    # Windows of .7 x .7 have an IoU of .49 with the box that is the image: all of them are valid
    # for one bound and none for the other.
    settings = CROP(
        min_ious=(0.0, 0.6), min_side=0.7, max_side=0.7, max_draws=1, whole_image_probability=0.0
    )
    drawn = windows(settings, [[0, 0, 1, 1]], 1000)
    assert abs(sum(window is None for window in drawn) - 500) < 70  # 4.4 standard deviations


def test_one_candidate_fails_more_often_than_fifty():
    once = {"max_draws": 1, "whole_image_probability": 0.0, "min_ious": (0.3,)}
    single, fifty = (
        sum(w is None for w in windows(CROP(candidates=count, **once), [[0.2, 0.1, 0.9, 0.8]]))
        for count in (1, 50)
    )
    assert fifty < 5
    assert 100 < single < 300


def test_drawing_ends_after_max_draws_and_leaves_the_image_whole():
    # Opposite corners: no window has an IoU above .9 with both.
    corners = np.array([[0, 0, 0.1, 0.1], [0.9, 0.9, 1, 1]], np.float32)
    settings = CROP(min_ious=(0.9,), max_draws=7, candidates=1, whole_image_probability=0.5)
    numbers = Drawn((0.5, 0.5, 0.5, 0.5))
    assert draw_window(corners, SIZE, settings, numbers) is None
    assert numbers.draws == 7
    # With the usual fields the whole image is drawn long before that.
    assert set(windows(CROP(min_ious=(0.9,)), corners, 50)) == {None}


def test_the_defaults_are_the_recipes():
    usual = CROP()
    assert usual.whole_image_probability == pytest.approx(1 / 7)
    assert usual.min_ious == (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    assert (usual.min_side, usual.max_side, usual.max_aspect_ratio) == (0.3, 1.0, 2.0)
    assert (usual.candidates, usual.resize_to) == (50, (300, 300))


# ---- what a window does to image and boxes -------------------------------------------------------


def test_boxes_stay_by_their_centre_and_are_clipped():
    # The window is .25 .. .75 both ways.
    boxes = [[0, 0, 0.6, 0.6], [0.7, 0.7, 0.9, 0.9], [0.3, 0.35, 0.5, 0.6], [0, 0, 0.5, 0.5]]
    settings = dataclasses.replace(
        HALF, candidates=1, min_ious=(-1.0,), whole_image_probability=0.5, resize_to=(6, 8)
    )
    before = sample(boxes=boxes)
    after = ssd_iou_crop(before, settings, Drawn((0, 0, 0.5, 0.5)))
    # The first one's centre is .3 and the third one's .4, .475; the last one's is on the corner.
    np.testing.assert_allclose(after.boxes, [[0, 0, 0.7, 0.7], [0.1, 0.2, 0.5, 0.7]], atol=1e-6)
    # What belongs to a box goes with it.
    np.testing.assert_allclose(after.weights, before.weights[[0, 2]])
    assert after.image.shape == (6, 8, 3)
    assert after.image.dtype == np.float32


@pytest.mark.parametrize("resize_to", [(300, 300), (120, 260), ()])
def test_a_box_stays_on_its_object(resize_to):
    # A white object on black; the box that comes out must enclose what is white, to a pixel.
    before = sample(boxes=[[0.3, 0.4, 0.6, 0.7]], size=(200, 300))
    before.image[:] = 0
    before.image[60:120, 120:210] = 255
    cropped = 0
    for number in range(60):
        after = augmented(CROP(resize_to=resize_to), before, number)
        height, width = after.image.shape[:2]
        cropped += (height, width) != (200, 300)
        white = after.image[..., 0] > 127
        rows, columns = np.flatnonzero(white.any(axis=1)), np.flatnonzero(white.any(axis=0))
        edges = [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]
        scale = np.array([height, width, height, width])
        # Corner pixels lie on the window's corners: that moves edges by up to one source pixel.
        slack = max(np.max(scale / 60), 1) if resize_to else 1e-3
        np.testing.assert_allclose(after.boxes[0] * scale, edges, atol=slack)
    assert cropped > 30


def test_without_resizing_windows_are_rounded_down_before_the_test():
    cut = dataclasses.replace(HALF, resize_to=(), candidates=1, min_ious=(-1.0,))
    window = (0, 0, 0.5, 0.5)
    # .25 .. .75 of 41 rows and 67 columns is 10.25 .. 30.75 and 16.75 .. 50.25.
    after = ssd_iou_crop(sample(boxes=MIDDLE, size=(41, 67)), cut, Drawn(window))
    assert np.array_equal(after.image, sample(size=(41, 67)).image[10:30, 16:50])
    # Of 3 rows it is 0.75 .. 2.25, thus 0 .. 2: a centre at .7 is outside.
    low = np.array([[0.65, 0.45, 0.75, 0.55]], np.float32)
    once = dataclasses.replace(cut, max_draws=1)
    assert draw_window(low, (300, 400), once, Drawn(window)) is not None
    assert draw_window(low, (3, 400), once, Drawn(window)) is None


def test_without_resizing_whole_pixels_are_cut_and_the_boxes_know_it():
    # Every pixel tells where it comes from.
    before = sample(boxes=SPREAD, size=(41, 67))
    y, x = np.mgrid[:41, :67]
    before = dataclasses.replace(before, image=np.stack([y, x, x], axis=2).astype(np.uint8))
    heights = set()
    for number in range(200):
        after = augmented(CROP(resize_to=(), min_ious=(0.0,)), before, number)
        top, left = after.image[0, 0, :2].astype(int)
        rows, columns = after.image.shape[:2]
        assert np.array_equal(after.image, before.image[top : top + rows, left : left + columns])
        assert after.image.dtype == np.uint8
        start, scale = np.array([top, left] * 2), np.array([41, 67] * 2)
        window = np.array([top, left, top + rows, left + columns])
        kept = [box for box in before.boxes if holds_centre(window, box * scale)]
        expected = np.clip(np.array(kept) * scale, window[[0, 1] * 2], window[[2, 3] * 2]) - start
        assert len(after.boxes) == len(kept)
        np.testing.assert_allclose(after.boxes * np.array([rows, columns] * 2), expected, atol=1e-3)
        heights.add(rows)
    assert len(heights) > 10


def test_the_whole_image_is_resized_between_its_corners_and_keeps_all_boxes():
    before = sample(boxes=[[0.2, -0.1, 1.1, 0.9], [0.5, 0.5, 0.5, 0.5]], size=(30, 50))
    whole = CROP(whole_image_probability=1.0, resize_to=(59, 99))
    after = augmented(whole, before)
    # 2n - 1 pixels: every other one is a pixel of the image.
    np.testing.assert_allclose(after.image[::2, ::2], before.image, atol=1e-3)
    assert after.boxes is before.boxes
    assert augmented(dataclasses.replace(whole, resize_to=()), before) is before


@pytest.mark.parametrize("resize_to", [(20, 30), ()])
def test_an_image_without_boxes_stays_whole(resize_to):
    before = sample(boxes=())
    for number in range(20):
        after = augmented(CROP(resize_to=resize_to, min_ious=(-1.0,)), before, number)
        assert after.image.shape == ((20, 30, 3) if resize_to else before.image.shape)
        # The two corners are still there.
        np.testing.assert_allclose(
            after.image[[0, -1], [0, -1]], before.image[[0, -1], [0, -1]], atol=1e-3
        )


def test_a_box_without_area_has_an_iou_of_0_with_every_window():
    point = [[0.5, 0.5, 0.5, 0.5]]
    assert set(windows(CROP(min_ious=(0.0,)), point, 30)) == {None}
    # The centre of the box is a place all the same.
    kept = [window for window in windows(CROP(min_ious=(-1.0,)), point, 30) if window is not None]
    assert len(kept) > 15
    assert all(holds_centre(window, point[0]) for window in kept)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1)])
def test_images_of_one_pixel_or_row(size):
    before = sample(boxes=[[0, 0, 1, 1]], size=size)
    before.image[:] = 77
    for number in range(30):
        resized = augmented(CROP(resize_to=(4, 6)), before, number)
        assert (resized.image == 77).all()
        assert resized.image.shape == (4, 6, 3)
        cut = augmented(CROP(resize_to=()), before, number)
        assert cut.image.size
        assert len(cut.boxes) == 1
