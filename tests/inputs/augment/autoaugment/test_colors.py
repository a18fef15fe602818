"""Quirks and formulas by hand; the goldens have the rest."""

import numpy as np
import pytest

from stillbox.inputs.augment.autoaugment import colors


def gray(*rows):
    return np.repeat(np.array(rows, np.uint8)[..., None], 3, axis=2)


def one_channel(image):
    assert (image == image[..., :1]).all()
    return image[..., 0].tolist()


def test_no_bits_keep_the_greatest_one():
    # TensorFlow shifts by 7 at most, and so the upper bit stays.
    assert one_channel(colors.posterize(gray([0, 127, 128, 255]), 0)) == [[0, 0, 128, 128]]
    assert one_channel(colors.posterize(gray([0, 127, 128, 255]), 8)) == [[0, 127, 128, 255]]


def test_a_threshold_of_256_inverts_everything_as_0_does():
    image = gray([0, 100, 255])
    assert one_channel(colors.solarize(image, 256)) == [[255, 155, 0]]
    assert one_channel(colors.solarize(image, 0)) == [[255, 155, 0]]
    assert one_channel(colors.solarize(image, 100)) == [[0, 155, 0]]
    assert one_channel(colors.solarize(image, 101)) == [[0, 100, 0]]


def test_solarize_add_changes_what_is_below_128():
    assert one_channel(colors.solarize_add(gray([0, 127, 128]), 110)) == [[110, 237, 128]]


def test_contrast_is_about_white_for_all_but_tiny_images():
    # 480 x 640 / 256 = 1200, cut to 255. 255 + 1.9 (200 - 255) = 150.5; (100 - 255) is below 0.
    image = np.full((480, 640, 3), 200, np.uint8)
    image[0] = 100
    result = colors.contrast(image, 1.9)
    assert result[1, 0].tolist() == [150] * 3
    assert result[0, 0].tolist() == [0] * 3
    # 2 x 256 / 256 = 2: 2 + .1 (200 - 2) = 21.8.
    assert (colors.contrast(np.full((2, 256, 3), 200, np.uint8), 0.1) == 21).all()


def test_contrast_about_the_mean_keeps_the_mean():
    # Grays 100 and 200: mean 150, and 150 + 1.9 (200 - 150) = 245, 150 + 1.9 (100 - 150) = 55.
    image = gray([100, 200], [200, 100])
    assert one_channel(colors.contrast_about_mean(image, 1.9)) == [[55, 245], [245, 55]]
    # Factor 0 leaves the mean alone: 100.5 is rounded up.
    assert one_channel(colors.contrast_about_mean(gray([100, 101]), 0.0)) == [[101, 101]]


def test_brightness_cuts_and_clips():
    assert one_channel(colors.brightness(gray([9, 100, 200]), 1.9)) == [[17, 190, 255]]
    assert one_channel(colors.brightness(gray([9, 100, 200]), 0.1)) == [[0, 10, 20]]


def test_color_interpolates_to_gray_and_extrapolates():
    image = np.array([[[200, 100, 0]]], np.uint8)
    # .2989 * 200 + .587 * 100 = 118.48; times 255.5 / 255 = 118.7, cut to 118.
    assert colors.color(image, 0.0)[0, 0].tolist() == [118] * 3
    # 118 + 1.9 * 82 = 273.8, 118 - 1.9 * 18 = 83.8, 118 - 1.9 * 118 < 0
    assert colors.color(image, 1.9)[0, 0].tolist() == [255, 83, 0]


def test_sharpness_smooths_the_inside():
    image = gray([0, 0, 0], [0, 130, 0], [0, 0, 26])
    # (5 * 130 + 26) / 13 = 52; the rim stays.
    smooth = [[0, 0, 0], [0, 52, 0], [0, 0, 26]]
    assert one_channel(colors.sharpness(image, 0.0)) == smooth
    # 52 + 1.9 * 78 = 200.2
    assert one_channel(colors.sharpness(image, 1.9))[1][1] == 200


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (9, 2)])
def test_an_image_without_an_inside_is_sharp_enough(size):
    image = np.arange(3 * size[0] * size[1], dtype=np.uint8).reshape(*size, 3)
    assert np.array_equal(colors.sharpness(image, 0.1), image)


def test_rows_at_a_time_are_the_same_as_all_at_once(monkeypatch):
    image = np.random.default_rng(0).integers(0, 256, (50, 40, 3), np.uint8)
    whole = [change(image, 0.3) for change in (colors.sharpness, colors.color)]
    monkeypatch.setattr("stillbox.inputs.augment.autoaugment.bands._VALUES", 700)
    parts = [change(image, 0.3) for change in (colors.sharpness, colors.color)]
    assert np.array_equal(whole, parts)


def test_auto_contrast_stretches_each_channel():
    image = np.array([[[50, 7, 0], [100, 7, 255], [150, 7, 10]]], np.uint8)
    # (100 - 50) * 255 / 100 = 127.5; a channel of one value stays.
    expected = [[[0, 7, 0], [127, 7, 255], [255, 7, 10]]]
    assert colors.auto_contrast(image).tolist() == expected


def test_equalize_by_hand():
    # 2 x 255 pixels of 10, 20 and 30 each. Step (1530 - 510) // 255 = 4.
    # Of 10: (0 + 2) // 4 = 0; of 20: (510 + 2) // 4 = 128; of 30: (1020 + 2) // 4 = 255.
    image = gray([10] * 510, [20] * 510, [30] * 510)
    assert one_channel(colors.equalize(image)) == [[0] * 510, [128] * 510, [255] * 510]
    # Too few pixels for a step.
    assert np.array_equal(colors.equalize(image[:, :9]), image[:, :9])
