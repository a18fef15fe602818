import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.augment.crops import CropWindow, crop, sample_window
from tests.inputs.augment.samples import augmented, many, rng, sample

CROP, FLIP, SSD = schema.RandomCropImage, schema.RandomHorizontalFlip, schema.SsdRandomCrop


# ---- what a window does to image and boxes ------------------------------------------------------


def test_boxes_are_expressed_in_the_window_and_clipped():
    # Rows 10..30 of 40, columns 20..60 of 80: y in .25...75, x in .25...75.
    after = crop(sample(), CropWindow(10, 20, 20, 40), 0.0, clip=True)
    assert (after.image == sample().image[10:30, 20:60]).all()
    # Box 0: y (.25-.25)/.5 .. (.75-.25)/.5, x 0 .. .5. Box 1: from the window's middle to its end.
    np.testing.assert_allclose(after.boxes, [[0, 0, 1, 0.5], [0.5, 0.5, 1, 1]])
    assert after.boxes.dtype == np.float32
    # Without clipping boxes reach beyond the window.
    after = crop(sample(), CropWindow(10, 20, 20, 40), 0.0, clip=False)
    np.testing.assert_allclose(after.boxes[1], [0.5, 0.5, 1.5, 1.5])


def test_a_box_stays_if_enough_of_its_own_area_is_inside():
    # Box 1 is .5 x .5, its part inside is .25 x .25: a quarter, although its IoU with the window
    # (.5 x .5) is .0625 / .4375 = .14.
    window = CropWindow(10, 20, 20, 40)
    assert crop(sample(), window, 0.25, clip=True).class_ids.tolist() == [1, 2]
    after = crop(sample(), window, 0.26, clip=True)
    assert after.class_ids.tolist() == [1]
    assert after.weights.tolist() == [0]  # what belongs to a box goes with it


def test_a_box_that_only_touches_the_window_is_dropped_without_a_threshold():
    touching = sample([[0.0, 0.0, 0.25, 1.0], [0.2, 0.0, 0.26, 1.0]])
    assert crop(touching, CropWindow(10, 0, 20, 80), 0.0, clip=True).class_ids.tolist() == [2]


def test_the_whole_image_as_window_changes_nothing():
    after = crop(sample(), CropWindow(0, 0, 40, 80), 1.0, clip=True)
    assert (after.image == sample().image).all()
    np.testing.assert_array_equal(after.boxes, sample().boxes)


# ---- how the window is drawn --------------------------------------------------------------------


def windows(settings, boxes=((0.3, 0.3, 0.6, 0.6),), size=(300, 400), count=300):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return [sample_window(*size, boxes, settings, rng(number)) for number in range(count)]


def test_area_and_aspect_ratio_are_in_their_ranges():
    shapes = {"min_aspect_ratio": 0.5, "max_aspect_ratio": 2.0, "min_area": 0.1, "max_area": 0.6}
    settings = CROP(min_object_covered=0.0, **shapes)
    drawn = windows(settings)
    area = np.array([w.height * w.width for w in drawn]) / (300 * 400)
    aspect = np.array([w.width / w.height for w in drawn])
    assert area.min() >= 0.1
    assert area.max() <= 0.6
    # Widths are rounded to whole pixels.
    assert aspect.min() > 0.5 - 0.01
    assert aspect.max() < 2.0 + 0.02
    # The ranges are used, not only kept.
    assert area.min() < 0.13
    assert area.max() > 0.55
    assert aspect.min() < 0.55
    assert aspect.max() > 1.85
    assert all(w.y >= 0 and w.y + w.height <= 300 for w in drawn)
    assert all(w.x >= 0 and w.x + w.width <= 400 for w in drawn)


@pytest.mark.parametrize("least", [0.1, 0.5, 0.9, 1.0])
def test_one_of_the_boxes_is_covered_enough(least):
    boxes = np.array([[0.1, 0.1, 0.3, 0.3], [0.5, 0.6, 0.9, 0.8]])
    settings = CROP(min_object_covered=least)
    pixels = boxes * [300, 400, 300, 400]
    cropped = 0
    for w in windows(settings, boxes):
        top_left = np.maximum(pixels[:, :2], [w.y, w.x])
        bottom_right = np.minimum(pixels[:, 2:], [w.y + w.height, w.x + w.width])
        common = (bottom_right - top_left).clip(0).prod(axis=1)
        # A pixel's width of slack: the judge sees boxes in whole pixels.
        assert (common / (pixels[:, 2:] - pixels[:, :2]).prod(axis=1)).max() >= least - 0.03
        cropped += w != (0, 0, 300, 400)
    assert cropped > 250


def test_an_impossible_demand_falls_back_to_the_whole_image():
    # Two opposite corners as one box, but at most half the area: never covered.
    settings = CROP(min_object_covered=1.0, max_area=0.5)
    assert set(windows(settings, [[0, 0, 1, 1]])) == {(0, 0, 300, 400)}


def test_an_image_without_boxes_is_its_own_box():
    settings = CROP(min_object_covered=0.5, min_aspect_ratio=1.0, max_aspect_ratio=1.5)
    drawn = windows(settings, ())
    assert all(w.height * w.width >= 0.5 * 300 * 400 for w in drawn)
    assert len(set(drawn)) > 100


def test_a_box_without_a_pixel_cannot_be_covered():
    tiny = [[0.5, 0.5, 0.5005, 0.5005]]
    assert set(windows(CROP(min_object_covered=0.1), tiny, count=20)) == {(0, 0, 300, 400)}


def test_a_tall_image_limits_the_width():
    settings = CROP(min_object_covered=0.0, min_aspect_ratio=0.5, max_aspect_ratio=2.0)
    drawn = windows(settings, size=(400, 50))
    assert max(w.width for w in drawn) <= 50
    assert len(set(drawn)) > 100


def test_one_pixel_can_be_cropped():
    single_pixel = sample([[0, 0, 1, 1]], size=(1, 1))
    for number in range(20):
        after = apply_augmentations([SSD()], single_pixel, rng(number))
        assert after.image.shape == (1, 1, 3)
        np.testing.assert_array_equal(after.boxes, [[0, 0, 1, 1]])


def test_heights_are_uniform_between_least_and_greatest():
    # Squares in a 100 x 100 image, area .01 ... 1: heights 10 ... 100, each as likely.
    settings = CROP(
        min_object_covered=0.0, min_aspect_ratio=1.0, max_aspect_ratio=1.0, min_area=0.01
    )
    heights = [w.height for w in windows(settings, size=(100, 100), count=3000)]
    assert (min(heights), max(heights)) == (10, 100)
    assert np.mean(heights) == pytest.approx(55, abs=2)  # 4 standard errors
    assert np.mean(np.array(heights) < 33) == pytest.approx(23 / 91, abs=0.03)


def test_random_coef_is_the_probability_of_leaving_the_image_alone():
    before = sample()
    settings = CROP(min_object_covered=0.0, random_coef=0.15, max_area=0.9)
    same = sum(after is before for after in many(settings, before, 2000))
    assert abs(same - 300) < 70  # 4.4 standard deviations


def test_ssd_random_crop_chooses_all_operations_equally_often():
    # Each operation makes windows of one size only: the size tells which one it was.
    operations = tuple(
        CROP(min_object_covered=0, min_aspect_ratio=1, max_aspect_ratio=1, min_area=a, max_area=a)
        for a in (0.25, 0.36, 0.49)
    )
    before = sample(size=(100, 100))
    sides = [
        apply_augmentations([SSD(operations=operations)], before, rng(number)).image.shape[0]
        for number in range(1500)
    ]
    assert set(sides) == {50, 60, 70}
    assert all(abs(sides.count(side) - 500) < 75 for side in (50, 60, 70))  # 4 deviations


def test_the_defaults_of_ssd_random_crop_are_the_papers():
    assert [operation.min_object_covered for operation in SSD().operations] == [
        *(0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    ]


def test_augmentations_leave_their_input_alone_and_keep_their_order():
    before = sample()
    image, boxes = before.image.copy(), before.boxes.copy()
    both = [FLIP(probability=1), CROP(min_object_covered=0.0, max_area=0.5)]
    forth = apply_augmentations(both, before, rng(1))
    back = apply_augmentations(both[::-1], before, rng(1))
    assert (before.image == image).all()
    assert (before.boxes == boxes).all()
    assert forth.image.shape != back.image.shape or (forth.image != back.image).any()


ASPECT = schema.RandomCropToAspectRatio
FIXED = schema.SsdRandomCropFixedAspectRatio
PAD_FIXED = schema.SsdRandomCropPadFixedAspectRatio


@pytest.mark.parametrize(
    ("size", "ratio", "expected"),
    [
        ((40, 80), 1.0, (40, 40)),
        ((80, 40), 1.0, (40, 40)),
        ((40, 80), 4.0, (20, 80)),
        ((40, 80), 2.0, (40, 80)),
        # 30 / 4 = 7.5 rows, rounded half to even.
        ((40, 30), 4.0, (8, 30)),
        # A side never vanishes.
        ((3, 40), 100.0, (1, 40)),
    ],
)
def test_the_window_is_the_largest_of_its_ratio(size, ratio, expected):
    for after in many(ASPECT(aspect_ratio=ratio), sample(size=size), 20):
        assert after.image.shape[:2] == expected


def test_every_place_is_as_likely_both_ends_included():
    before = sample(size=(2, 5))
    before.image[:] = np.arange(5, dtype=np.uint8)[:, None]
    first = [after.image[0, 0, 0] for after in many(ASPECT(), before, 1200)]
    assert set(first) == {0, 1, 2, 3}
    assert all(abs(first.count(x) - 300) < 65 for x in range(4))  # 4.3 standard deviations


def test_boxes_of_which_too_little_is_inside_go():
    # The window shows columns x .. x + 40 of 80; the box fills columns 20..40.
    before = sample(boxes=[[0, 0.25, 1, 0.5]])
    seen = set()
    for number in range(200):
        after = augmented(ASPECT(overlap_thresh=0.5), before, number)
        x = next(x for x in range(41) if (before.image[:, x : x + 40] == after.image).all())
        share = np.clip(40 - max(20, x), 0, 20) / 20
        assert len(after.boxes) == (share >= 0.5)
        if len(after.boxes):
            expected = [0, max(20 - x, 0) / 40, 1, (40 - x) / 40]
            np.testing.assert_allclose(after.boxes[0], expected, atol=1e-6)
        seen.add(len(after.boxes))
    assert seen == {0, 1}


def test_a_fixed_crop_has_exactly_its_ratio_even_when_it_is_passed_by():
    operation = schema.FixedAspectCrop(random_coef=1.0)
    settings = FIXED(operations=(operation,), aspect_ratio=0.5)
    assert {a.image.shape for a in many(settings, sample(), 10)} == {(40, 20, 3)}


def test_a_fixed_crop_draws_windows_of_its_ratio():
    operation = schema.FixedAspectCrop(min_object_covered=0.0, min_area=0.1, max_area=0.5)
    settings = FIXED(operations=(operation,), aspect_ratio=1.5)
    sizes = {a.image.shape[:2] for a in many(settings, sample(size=(200, 300)), 100)}
    assert len(sizes) > 30
    assert all(abs(width - 1.5 * height) <= 1 for height, width in sizes)


def test_a_fixed_crop_prunes_and_clips_in_its_second_cut():
    # The first crop is passed by; the second keeps 40 of 80 columns: of the whole image's box a
    # half, which is more than 0.3.
    operation = schema.FixedAspectCrop(random_coef=1.0, overlap_thresh=1.0, clip_boxes=False)
    settings = FIXED(operations=(operation,))
    after = augmented(settings, sample(boxes=[[0, 0, 1, 1]]))
    np.testing.assert_allclose(after.boxes, [[0, 0, 1, 1]])


def test_padding_ends_at_the_ratio_with_the_window_in_the_upper_left():
    operation = schema.RandomCropImage(random_coef=1.0)
    before = sample(size=(40, 80))
    for after in many(PAD_FIXED(operations=(operation,)), before, 50):
        height, width = after.image.shape[:2]
        assert height == width
        # The smallest square holds the width. Its height of 80 is twice the window's already, so
        # that no factor above 1 is left.
        assert width == 80
        assert (after.image[:40] == before.image).all()
        assert (after.image[40:] == 0).all()
        np.testing.assert_allclose(after.boxes, before.boxes * [0.5, 1, 0.5, 1])


def test_padding_scales_between_its_ratios():
    operation = schema.RandomCropImage(random_coef=1.0)
    settings = PAD_FIXED(
        operations=(operation,), min_padded_size_ratio=(1.2, 1.5), max_padded_size_ratio=(3.0, 2.0)
    )
    # 40 x 40: factors from max(1.2, 1.5) to min(3, 2).
    sides = [after.image.shape[0] for after in many(settings, sample(size=(40, 40)))]
    assert min(sides) == 60
    assert max(sides) in (79, 80)
    assert len(set(sides)) > 15


def test_the_greatest_ratio_wins_over_the_least():
    operation = schema.RandomCropImage(random_coef=1.0)
    settings = PAD_FIXED(
        operations=(operation,), min_padded_size_ratio=(3.0, 1.0), max_padded_size_ratio=(4.0, 1.0)
    )
    assert augmented(settings, sample(size=(40, 40))).image.shape == (40, 40, 3)


# ---- Labels and scores of boxes ------------------------------------------------------------------


JITTER, DROP = schema.RandomJitterBoxes, schema.DropLabelProbabilistically
BOX = [[0.4, 0.3, 0.6, 0.5]]  # centre (.5, .4), .2 x .2


def shares(mode, ratio=0.5, box=BOX):
    """Returns how far every edge is from the centre, relative to half the size, `[300, 4]`."""
    ymin, xmin, ymax, xmax = box[0]
    centre = np.array([ymin + ymax, xmin + xmax] * 2) / 2
    half = np.array([ymax - ymin, xmax - xmin] * 2) / 2
    moved = np.stack([a.boxes[0] for a in many(JITTER(ratio=ratio, mode=mode), sample(boxes=box))])
    return (moved - centre) / half * [-1, -1, 1, 1]


@pytest.mark.parametrize(
    ("mode", "low", "high"),
    [("default", 0.5, 1.5)]
    + [(f"expand{end}", 1, 1.5) for end in ("", "_symmetric", "_symmetric_xy")]
    + [(f"shrink{end}", 0.5, 1) for end in ("", "_symmetric", "_symmetric_xy")],
)
def test_edges_move_within_their_range(mode, low, high):
    moved = shares(mode)
    assert moved.min() >= low - 1e-5
    assert moved.max() <= high + 1e-5
    assert np.ptp(moved) > 0.9 * (high - low)
    # How many of the four are drawn by themselves.
    independent = {"_xy": 1, "ric": 2}.get(mode[-3:], 4)
    different = np.mean([len(np.unique(row.round(4))) for row in moved])
    assert different == pytest.approx(independent, abs=0.1)
    if independent == 2:
        np.testing.assert_allclose(moved[:, :2], moved[:, 2:], atol=1e-4)


def test_edges_end_at_the_image():
    corner = [[0.0, 0.0, 0.2, 0.2]]
    for after in many(JITTER(ratio=1.0), sample(boxes=corner), 50):
        assert after.boxes.min() >= 0


def test_a_symmetric_box_stops_at_the_first_edge_of_the_image():
    # .1 above and .05 beside the box: it may grow to 1.5 and 1.2 times its size.
    box = [[0.1, 0.05, 0.5, 0.55]]
    moved = shares("expand_symmetric", ratio=1.0, box=box)
    np.testing.assert_allclose(moved.max(axis=0), [1.5, 1.2, 1.5, 1.2], atol=1e-4)
    moved = shares("expand_symmetric_xy", ratio=1.0, box=box)
    np.testing.assert_allclose(moved.max(axis=0), [1.2] * 4, atol=1e-4)


def test_jitter_leaves_image_and_classes_alone():
    before = sample()
    after = augmented(JITTER(), before)
    assert after.image is before.image
    assert after.class_ids is before.class_ids


def test_boxes_of_one_class_are_dropped_at_random():
    before = sample(boxes=[[0, 0, 1, 1]] * 4)
    lucky = many(DROP(label=2, probability=0.25), before, 800)
    kept = [after.class_ids.tolist() for after in lucky]
    assert all(class_ids in ([1, 2, 3, 4], [1, 3, 4]) for class_ids in kept)
    assert abs(kept.count([1, 3, 4]) - 200) < 55  # 4.5 standard deviations
    assert augmented(DROP(label=2), before).weights.tolist() == pytest.approx([0, 2 / 3, 1])


def test_each_box_of_the_class_is_dropped_independently():
    before = sample(boxes=[[0, 0, 1, 1]] * 6)
    before.class_ids[:] = 1
    counts = {len(after.boxes) for after in many(DROP(label=1, probability=0.5), before)}
    assert counts == set(range(7))


def test_labels_are_remapped_by_their_label_map_ids():
    before = sample(boxes=[[0, 0, 1, 1]] * 4)
    after = augmented(schema.RemapLabels(original_labels=(1, 4), new_label=3), before)
    assert after.class_ids.tolist() == [3, 2, 3, 3]
    assert after.class_ids.dtype == np.int32
    assert before.class_ids.tolist() == [1, 2, 3, 4]


# ---- an image below or beside itself ------------------------------------------------------------


def concat(vertical, horizontal):
    return schema.RandomSelfConcatImage(
        vertical_probability=vertical, horizontal_probability=horizontal
    )


def test_an_image_below_itself_has_its_boxes_twice():
    before = sample()
    after = augmented(concat(1.0, 0.0), before)
    assert (after.image == np.concatenate([before.image] * 2)).all()
    # y is halved; the copy's is half an image further down.
    upper = np.array([[0.125, 0.25, 0.375, 0.5], [0.25, 0.5, 0.5, 1]])
    lower = upper + np.array([0.5, 0, 0.5, 0])
    np.testing.assert_allclose(after.boxes, np.concatenate([upper, lower]))
    assert after.class_ids.tolist() == [1, 2, 1, 2]
    assert after.weights.tolist() == [0, 1, 0, 1]


def test_an_image_beside_itself():
    after = augmented(concat(0.0, 1.0), sample(boxes=[[0.25, 0.25, 0.75, 0.5]]))
    assert after.image.shape == (40, 160, 3)
    np.testing.assert_allclose(after.boxes, [[0.25, 0.125, 0.75, 0.25], [0.25, 0.625, 0.75, 0.75]])


def test_below_and_beside_are_independent():
    shapes = [after.image.shape[:2] for after in many(concat(0.5, 0.5), sample(size=(1, 1)), 800)]
    for shape in ((1, 1), (1, 2), (2, 1), (2, 2)):
        assert abs(shapes.count(shape) - 200) < 55  # 4.5 standard deviations
