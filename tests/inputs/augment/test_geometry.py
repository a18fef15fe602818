import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.resize import resize_image
from tests.inputs.augment.samples import augmented, many, of_pixels, rng, sample

CROP, FLIP, SSD = schema.RandomCropImage, schema.RandomHorizontalFlip, schema.SsdRandomCrop
TURNS = schema.RandomHorizontalFlip, schema.RandomVerticalFlip, schema.RandomRotation90


def test_a_flip_mirrors_image_and_boxes():
    before = sample()
    after = apply_augmentations([FLIP(probability=1.0)], before, rng())
    assert (after.image == before.image[:, ::-1]).all()
    # (ymin, 1 - xmax, ymax, 1 - xmin)
    np.testing.assert_allclose(after.boxes, [[0.25, 0.5, 0.75, 0.75], [0.5, 0, 1, 0.5]])
    assert after.class_ids is before.class_ids


def test_probability_0_never_flips_and_1_always_does():
    before = sample(size=(1, 1))
    for number in range(200):
        assert apply_augmentations([FLIP(probability=0)], before, rng(number)) is before
        assert apply_augmentations([FLIP(probability=1)], before, rng(number)) is not before
    # And usually half of all images.
    flipped = sum(
        apply_augmentations([FLIP()], before, rng(number)) is not before for number in range(2000)
    )
    assert abs(flipped - 1000) < 100  # 4.5 standard deviations


def test_no_boxes_stay_no_boxes():
    after = apply_augmentations([FLIP(probability=1), CROP(), SSD()], sample(boxes=()), rng())
    assert after.boxes.shape == (0, 4)
    assert after.boxes.dtype == np.float32


def test_upside_down():
    after = augmented(schema.RandomVerticalFlip(probability=1), sample())
    assert (after.image == sample().image[::-1]).all()
    # (1 - ymax, xmin, 1 - ymin, xmax)
    np.testing.assert_allclose(after.boxes, [[0.25, 0.25, 0.75, 0.5], [0, 0.5, 0.5, 1]])


def test_a_turn_is_against_the_clock():
    before = sample(boxes=[[0.1, 0.2, 0.3, 0.6]])
    after = augmented(schema.RandomRotation90(probability=1), before)
    assert (after.image == np.rot90(before.image)).all()
    # The right edge comes to the top: (1 - xmax, ymin, 1 - xmin, ymax).
    np.testing.assert_allclose(after.boxes, [[0.4, 0.1, 0.8, 0.3]], rtol=1e-6)


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.kind)
def test_a_box_moves_with_its_pixels(turn):
    before = sample(boxes=[[0.25, 0.5, 0.5, 0.625]])
    before.image[:] = 0
    before.image[10:20, 40:50] = 255  # of 40 x 80
    after = augmented(turn(probability=1), before)
    ymin, xmin, ymax, xmax = np.rint(after.boxes[0] * np.tile(after.image.shape[:2], 2)).astype(int)
    assert (after.image[ymin:ymax, xmin:xmax] == 255).all()
    assert (after.image == 255).sum() == 3 * (ymax - ymin) * (xmax - xmin)


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.kind)
def test_probability_0_leaves_the_sample_itself(turn):
    before = sample()
    assert augmented(turn(probability=0), before) is before


def test_scaling_is_uniform_and_keeps_the_boxes():
    before = sample()
    results = many(schema.RandomImageScale(min_ratio=0.5, max_ratio=2.0), before, 400)
    heights = [after.image.shape[0] for after in results]
    assert min(heights) in (20, 21)
    assert max(heights) in (78, 79)
    assert np.mean(heights) == pytest.approx(49.5, abs=4)  # 5 standard errors
    assert all(after.boxes is before.boxes for after in results)


def test_scaling_aligns_the_corners_and_cuts_sides_to_whole_pixels():
    # Three columns to five: positions 0, .5, 1, 1.5, 2.
    settings = schema.RandomImageScale(min_ratio=1.7, max_ratio=1.7)
    after = augmented(settings, of_pixels([0, 10, 30]))
    assert after.image[0, :, 0].tolist() == [0, 5, 10, 20, 30]
    settings = schema.RandomImageScale(min_ratio=0.99, max_ratio=0.99)
    assert augmented(settings, sample(size=(40, 80))).image.shape == (39, 79, 3)


def test_all_four_methods_are_used():
    before = sample()
    settings = schema.RandomResizeMethod(height=16, width=17)
    images = [after.image.tobytes() for after in many(settings, before, 400)]
    expected = {}
    for method in ("bilinear", "nearest", "bicubic", "area"):
        fixed = schema.FixedShapeResizer(height=16, width=17, method=method)
        expected[resize_image(before.image, fixed)[0].tobytes()] = method
    assert {expected[pixels] for pixels in images} == set(expected.values())
    assert all(abs(images.count(pixels) - 100) < 40 for pixels in expected)  # 4.6 deviations


@pytest.mark.parametrize("method", ["bilinear", "nearest", "bicubic", "area"])
def test_resizing_is_that_of_the_resizer(method):
    before = sample()
    after = augmented(schema.ResizeImage(height=16, width=17, method=method), before)
    fixed = schema.FixedShapeResizer(height=16, width=17, method=method)
    assert (after.image == resize_image(before.image, fixed)[0]).all()
    assert after.boxes is before.boxes


def test_downscaling_aims_for_a_number_of_pixels():
    # 40 x 80 = 3200 pixels to 800: half of each side.
    settings = schema.RandomDownscaleToTargetPixels(min_target_pixels=800, max_target_pixels=800)
    assert augmented(settings, sample()).image.shape == (20, 40, 3)
    # To 799: .49969 of each side, cut.
    settings = schema.RandomDownscaleToTargetPixels(min_target_pixels=799, max_target_pixels=799)
    assert augmented(settings, sample()).image.shape == (19, 39, 3)


def test_downscaling_never_enlarges():
    settings = schema.RandomDownscaleToTargetPixels(min_target_pixels=3200, max_target_pixels=3200)
    before = sample()
    assert augmented(settings, before) is before


def test_downscaling_may_be_skipped():
    settings = schema.RandomDownscaleToTargetPixels(
        min_target_pixels=100, max_target_pixels=800, random_coef=0.5
    )
    before = sample()
    same = sum(after is before for after in many(settings, before, 400))
    assert abs(same - 200) < 45  # 4.5 standard deviations


SQUARE, SCALE = schema.RandomSquareCropByScale, schema.RandomScaleCropAndPadToSquare


def white(size, boxes=((0, 0, 1, 1),)):
    before = sample(boxes=boxes, size=size)
    before.image[:] = 255
    return before


def test_sides_are_evenly_spaced_and_as_likely():
    settings = SQUARE(min_scale=0.5, max_scale=1.5, num_scales=3)
    sides = [after.image.shape[0] for after in many(settings, white((40, 80)), 900)]
    assert set(sides) == {40, 80, 120}  # .5, 1 and 1.5 times 80
    assert all(abs(sides.count(side) - 300) < 60 for side in (40, 80, 120))  # 4.2 deviations


def test_a_square_shows_its_part_of_the_image_and_black_around_it():
    settings = SQUARE(min_scale=1.5, max_scale=1.5, num_scales=1, max_border=8)
    for after in many(settings, white((40, 80)), 50):
        assert after.image.shape == (120, 120, 3)
        # A side of 120 around any centre holds all 40 rows, but not always all 80 columns.
        ymin, xmin, ymax, xmax = np.rint(after.boxes[0] * 120).astype(int)
        assert ymax - ymin == 40
        assert (after.image[ymin:ymax, xmin:xmax] == 255).all()
        assert (after.image == 255).sum() == 3 * 40 * (xmax - xmin)


def test_the_centre_keeps_its_border():
    # 128 halved until it is at most half of 40 is 16: the centre's row is in 16..24. The square's
    # side is 40, so its first row lies in -4..4.
    settings = SQUARE(min_scale=1.0, max_scale=1.0, num_scales=1)
    tops = set()
    for after in many(settings, white((40, 40)), 300):
        ymin, _, ymax, _ = np.rint(after.boxes[0] * 40).astype(int)
        tops.add(ymin if ymin else ymax - 40)
    assert tops == set(range(-4, 5))


def test_boxes_outside_the_square_go():
    boxes = [[0, 0, 0.1, 0.1], [0.9, 0.9, 1, 1]]
    settings = SQUARE(min_scale=0.3, max_scale=0.3, num_scales=1, max_border=1)
    counts = {len(after.boxes) for after in many(settings, white((100, 100), boxes))}
    assert {0, 1} <= counts
    assert 2 not in counts


def test_a_small_scale_is_padded_below_and_to_the_right():
    # The long side becomes half of 60; 40 x 80 -> 15 x 30.
    after = augmented(SCALE(output_size=60, min_scale=0.5, max_scale=0.5), white((40, 80)))
    assert after.image.shape == (60, 60, 3)
    assert (after.image[:15, :30] == 255).all()
    assert after.image.sum() == 255 * 3 * 15 * 30
    np.testing.assert_allclose(after.boxes, [[0, 0, 0.25, 0.5]])


def test_square_crops_sides_are_cut_to_whole_pixels():
    # Long side .9 * 61 = 54.9, short side 27.45.
    after = augmented(SCALE(output_size=61, min_scale=0.9, max_scale=0.9), white((40, 80)))
    np.testing.assert_allclose(after.boxes * 61, [[0, 0, 27, 54]], rtol=1e-5)


def test_a_large_scale_is_cut_at_a_random_place():
    # 40 x 80 -> 60 x 120: all rows, and columns from 0 .. 59 on.
    settings = SCALE(output_size=60, min_scale=2.0, max_scale=2.0)
    starts = set()
    for after in many(settings, white((40, 80), [[0, 0.45, 1, 0.55]])):
        assert (after.image == 255).all()
        # The box covers columns 54 .. 66.
        ymin, xmin, ymax, xmax = after.boxes[0] * 60
        assert (ymin, ymax) == (0, 60)
        if xmax < 60 and xmin > 0:
            assert abs(xmax - xmin - 12) < 1e-4
            starts.add(round(54 - xmin))
    assert min(starts) >= 7
    assert max(starts) <= 53
    assert len(starts) > 30


# ---- Padding -------------------------------------------------------------------------------------


PAD, ABSOLUTE = schema.RandomPadImage, schema.RandomAbsolutePadImage
CROP_PAD = schema.RandomCropPadImage
EXACTLY = {"min_height": 50, "max_height": 50, "min_width": 100, "max_width": 100}


def place_of(after, before):
    """Returns row and column where the image is found on its canvas."""
    rows, columns = before.image.shape[:2]
    for y in range(after.image.shape[0] - rows + 1):
        for x in range(after.image.shape[1] - columns + 1):
            if (after.image[y : y + rows, x : x + columns] == before.image).all():
                return y, x
    raise AssertionError("the image is not on its canvas")


def test_image_and_boxes_lie_at_the_same_place_on_the_canvas():
    before = sample()
    after = augmented(PAD(pad_color=(7.0, 8.0, 9.0), **EXACTLY), before)
    assert after.image.shape == (50, 100, 3)
    y, x = place_of(after, before)
    # Box 0 covers rows 10..30 of 40 and columns 20..40 of 80.
    expected = [(y + 10) / 50, (x + 20) / 100, (y + 30) / 50, (x + 40) / 100]
    np.testing.assert_allclose(after.boxes[0], expected, rtol=1e-6)
    outside = np.ones((50, 100), bool)
    outside[y : y + 40, x : x + 80] = False
    assert (after.image[outside] == [7, 8, 9]).all()
    assert after.image.dtype == np.uint8


def test_places_are_uniform_but_for_the_last_one():
    # One row of two pixels on a canvas of one row and six: columns 0 to 3, never 4.
    before = of_pixels([10, 20])
    sizes = {"min_height": 1, "max_height": 1, "min_width": 6, "max_width": 6}
    places = [place_of(after, before)[1] for after in many(PAD(**sizes), before, 1000)]
    assert set(places) == {0, 1, 2, 3}
    assert all(abs(places.count(x) - 250) < 60 for x in range(4))  # 4.4 standard deviations


def test_without_sizes_the_canvas_is_up_to_twice_as_large():
    heights = [after.image.shape[0] for after in many(PAD(), sample(size=(4, 1)), 500)]
    assert set(heights) == {4, 5, 6, 7}  # 8 is excluded


def test_the_greatest_size_is_excluded():
    settings = PAD(min_height=10, min_width=1, max_height=12, max_width=1)
    shapes = {a.image.shape for a in many(settings, sample(size=(4, 3)), 100)}
    assert shapes == {(10, 3, 3), (11, 3, 3)}


def test_an_image_larger_than_the_canvas_stays_as_it_is():
    settings = PAD(min_height=1, min_width=1, max_height=2, max_width=2)
    after = augmented(settings, sample())
    assert (after.image == sample().image).all()
    np.testing.assert_array_equal(after.boxes, sample().boxes)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_usual_colour_is_the_images_mean(dtype):
    # Red 10 and 21, mean 15.5: float keeps it, uint8 rounds it half to even.
    before = of_pixels([[10, 0, 4], [21, 0, 6]], dtype=dtype)
    sizes = {"min_height": 3, "max_height": 3, "min_width": 2, "max_width": 2}
    after = augmented(PAD(**sizes), before)
    assert after.image.dtype == dtype
    y, _ = place_of(after, before)
    expected = [16, 0, 5] if dtype == np.uint8 else [15.5, 0, 5]
    assert (np.delete(after.image, y, axis=0) == expected).all()


def test_absolute_padding_adds_less_than_its_maximum():
    settings = ABSOLUTE(max_height_padding=3, max_width_padding=1)
    sizes = {after.image.shape[:2] for after in many(settings, sample(size=(5, 6)))}
    assert sizes == {(5, 6), (6, 6), (7, 6)}


def test_a_crop_is_padded_relative_to_the_image_before_it():
    # The window has a quarter of 40 x 40; padded to exactly one and a half times 40 x 40.
    settings = CROP_PAD(
        min_object_covered=0.0,
        min_aspect_ratio=1.0,
        max_aspect_ratio=1.0,
        min_area=0.25,
        max_area=0.25,
        min_padded_size_ratio=(1.5, 2.0),
        max_padded_size_ratio=(1.5, 2.0),
        pad_color=(0.0, 0.0, 0.0),
    )
    before = sample(size=(40, 40))
    before.image[:] = 255
    for after in many(settings, before, 30):
        assert after.image.shape == (60, 80, 3)
        assert (after.image == 255).sum() == 3 * 20 * 20


def test_a_crop_that_is_passed_by_is_padded_all_the_same():
    settings = CROP_PAD(random_coef=1.0, min_padded_size_ratio=(1.5, 1.5))
    after = augmented(settings, sample())
    assert after.image.shape[0] >= 60
    assert place_of(after, sample())
    assert len(after.boxes) == 2


def test_ssd_random_crop_pad_chooses_all_operations_equally_often():
    operations = tuple(
        CROP_PAD(random_coef=1.0, min_padded_size_ratio=(r, r), max_padded_size_ratio=(r, r))
        for r in (1.0, 2.0, 3.0)
    )
    settings = schema.SsdRandomCropPad(operations=operations)
    heights = [after.image.shape[0] for after in many(settings, sample(size=(8, 8)), 900)]
    assert set(heights) == {8, 16, 24}
    assert all(abs(heights.count(h) - 300) < 60 for h in (8, 16, 24))  # 4.2 deviations
