import numpy as np
import pytest

from stillbox.experiment import schema
from tests.inputs.augment.samples import augmented, many, of_pixels, sample

PAD, ABSOLUTE, CROP_PAD = (
    schema.RandomPadImage,
    schema.RandomAbsolutePadImage,
    schema.RandomCropPadImage,
)
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
    found = [place_of(after, before)[1] for after in many(PAD(**sizes), before, 1000)]
    assert set(found) == {0, 1, 2, 3}
    assert all(abs(found.count(x) - 250) < 60 for x in range(4))  # 4.4 standard deviations


def test_without_sizes_the_canvas_is_up_to_twice_as_large():
    heights = [after.image.shape[0] for after in many(PAD(), sample(size=(4, 1)), 500)]
    assert set(heights) == {4, 5, 6, 7}  # 8 is excluded


def test_the_greatest_size_is_excluded():
    settings = PAD(min_height=10, min_width=1, max_height=12, max_width=1)
    assert {a.image.shape for a in many(settings, sample(size=(4, 3)), 100)} == {
        (10, 3, 3),
        (11, 3, 3),
    }


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
    assert {after.image.shape[:2] for after in many(settings, sample(size=(5, 6)))} == {
        (5, 6),
        (6, 6),
        (7, 6),
    }


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
