import numpy as np
import pytest

from stillbox.experiment import schema
from tests.inputs.augment.samples import augmented, many, sample

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
