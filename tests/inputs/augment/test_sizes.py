import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.resize import resize_image
from tests.inputs.augment.samples import augmented, many, of_pixels, sample


def test_scaling_is_uniform_and_keeps_the_boxes():
    before = sample()
    results = many(schema.RandomImageScale(min_ratio=0.5, max_ratio=2.0), before, 400)
    heights = [after.image.shape[0] for after in results]
    assert min(heights) in (20, 21)
    assert max(heights) in (78, 79)
    assert np.mean(heights) == pytest.approx(49.5, abs=4)  # 5 standard errors
    assert all(after.boxes is before.boxes for after in results)


def test_scaling_aligns_the_corners():
    # Three columns to five: positions 0, .5, 1, 1.5, 2.
    settings = schema.RandomImageScale(min_ratio=1.7, max_ratio=1.7)
    after = augmented(settings, of_pixels([0, 10, 30]))
    assert after.image[0, :, 0].tolist() == [0, 5, 10, 20, 30]


def test_sides_are_cut_to_whole_pixels():
    settings = schema.RandomImageScale(min_ratio=0.99, max_ratio=0.99)
    assert augmented(settings, sample(size=(40, 80))).image.shape == (39, 79, 3)


def test_all_four_methods_are_used():
    before = sample()
    settings = schema.RandomResizeMethod(height=16, width=17)
    found = [after.image.tobytes() for after in many(settings, before, 400)]
    expected = {}
    for method in ("bilinear", "nearest", "bicubic", "area"):
        fixed = schema.FixedShapeResizer(height=16, width=17, method=method)
        expected[resize_image(before.image, fixed)[0].tobytes()] = method
    assert {expected[pixels] for pixels in found} == set(expected.values())
    assert all(abs(found.count(pixels) - 100) < 40 for pixels in expected)  # 4.6 deviations


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
