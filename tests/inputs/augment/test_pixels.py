import colorsys
from dataclasses import replace

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.augment.pixels import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
)
from tests.inputs.augment.samples import augmented, many, of_pixels, rng, sample

BRIGHTNESS, CONTRAST = schema.RandomAdjustBrightness, schema.RandomAdjustContrast
HUE, SATURATION = schema.RandomAdjustHue, schema.RandomAdjustSaturation
COLORS = ([200, 30, 90], [12, 250, 13], [5, 5, 6], [255, 255, 255], [0, 0, 0], [90, 90, 250])


def values(settings, before, number=0):
    after = augmented(settings, before, number)
    assert after.image.dtype == np.float32
    return after.image


def test_brightness_moves_all_values_alike_and_clips():
    before = of_pixels([0, 100, 255])
    moves = [values(BRIGHTNESS(), before, n)[0, :, 0] for n in range(300)]
    deltas = np.array([row[1] - 100 for row in moves])
    assert np.abs(deltas).max() <= 0.2 * 255
    assert np.abs(deltas).max() > 0.19 * 255
    assert abs(deltas.mean()) < 7  # 29.4 / sqrt(300) = 1.7 is a standard error
    for row, delta in zip(moves, deltas, strict=True):
        expected = np.clip([delta, 100 + delta, 255 + delta], 0, 255)
        np.testing.assert_allclose(row, expected, atol=1e-4)


def test_contrast_moves_away_from_the_mean_of_each_channel():
    # Red 50 and 150, mean 100; green 0 and 40, mean 20; blue is even and stays.
    before = of_pixels([[50, 0, 9], [150, 40, 9]])
    image = values(CONTRAST(min_factor=1.2, max_factor=1.2), before)
    np.testing.assert_allclose(image[0], [[40, 0, 9], [160, 44, 9]], rtol=1e-5)  # -4 is clipped
    image = values(CONTRAST(min_factor=0.5, max_factor=0.5), before)
    np.testing.assert_allclose(image[0], [[75, 10, 9], [125, 30, 9]], rtol=1e-5)


@pytest.mark.parametrize("turn", [0.1, 0.5])
def test_hue_turns_by_shares_of_a_full_turn(turn):
    before = of_pixels(COLORS)
    image = values(HUE(max_turn=turn), before)
    # The turn that was drawn, from the one pixel with the clearest hue.
    red, green, blue = image[0, 0] / 255
    hue, _, _ = colorsys.rgb_to_hsv(red, green, blue)
    start, _, _ = colorsys.rgb_to_hsv(*np.array(COLORS[0]) / 255)
    drawn = (hue - start + 0.5) % 1 - 0.5
    assert 0.001 < abs(drawn) <= turn + 1e-5
    for color, pixel in zip(COLORS, image[0], strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*np.array(color) / 255)
        expected = np.array(colorsys.hsv_to_rgb((hue + drawn) % 1, saturation, value)) * 255
        np.testing.assert_allclose(pixel, expected, atol=0.02)


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 1.5, 9.0])
def test_saturation_is_multiplied_and_ends_at_1(factor):
    image = values(SATURATION(min_factor=factor, max_factor=factor), of_pixels(COLORS))
    for color, pixel in zip(COLORS, image[0], strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*np.array(color) / 255)
        expected = colorsys.hsv_to_rgb(hue, min(saturation * factor, 1), value)
        np.testing.assert_allclose(pixel, np.array(expected) * 255, atol=0.02)


def test_turning_nothing_and_scaling_by_one_change_nothing():
    before = sample()
    factors = [kind(min_factor=1.0, max_factor=1.0) for kind in (SATURATION, CONTRAST)]
    for settings in (HUE(max_turn=0.0), BRIGHTNESS(max_delta=0.0), *factors):
        np.testing.assert_allclose(values(settings, before), before.image, atol=1e-3)


def test_the_two_orders_of_a_distortion_differ_only_in_order():
    before = sample()
    parts = {
        "brightness": BRIGHTNESS(max_delta=32 / 255),
        "saturation": SATURATION(min_factor=0.5, max_factor=1.5),
        "hue": HUE(max_turn=0.2),
        "contrast": CONTRAST(min_factor=0.5, max_factor=1.5),
    }
    orders = {
        0: ("brightness", "saturation", "hue", "contrast"),
        1: ("brightness", "contrast", "saturation", "hue"),
    }
    results = []
    for ordering, names in orders.items():
        whole = augmented(schema.RandomDistortColor(ordering=ordering), before, 4)
        in_turn = apply_augmentations([parts[name] for name in names], before, rng(4))
        assert (whole.image == in_turn.image).all()
        results.append(whole.image)
    assert (results[0] != results[1]).any()


def test_values_beyond_the_range_are_clipped():
    loud = [BRIGHTNESS(max_delta=1.0), CONTRAST(max_factor=5.0), SATURATION(max_factor=5.0)]
    for settings in loud:
        for after in many(settings, sample(), 20):
            assert after.image.min() >= 0
            assert after.image.max() <= 255


# ---- TensorFlow's operations, without clipping ---------------------------------------------------

# Executed by TensorFlow on values in 0..1.
TWO = [(0.2, 0.4, 0.6), (0.9, 0.1, 0.3)]
BEYOND = [(1.1, 0.4, -0.1)]


@pytest.mark.parametrize(
    ("operation", "amount", "before", "expected"),
    [
        (adjust_brightness, 0.1, TWO, [(0.3, 0.5, 0.7), (1.0, 0.2, 0.4)]),
        # About the means .55, .25, .45: .55 + 1.5 * -.35 = .025, and so on.
        (adjust_contrast, 1.5, TWO, [(0.025, 0.475, 0.675), (1.075, 0.025, 0.225)]),
        (adjust_saturation, 0.5, TWO, [(0.4, 0.5, 0.6), (0.9, 0.5, 0.6)]),
        (adjust_hue, 0.05, TWO, [(0.2, 0.28, 0.6), (0.9, 0.14, 0.1)]),
        (adjust_saturation, 0.5, BEYOND, [(1.1, 0.75, 0.5)]),
        (adjust_hue, 0.05, BEYOND, [(1.1, 0.76, -0.1)]),
        # By hand. The saturation, 1.2 / 1.1, ends at 1, so that the least channel is 0. The middle
        # one keeps its share of the range, .5 / 1.2: 1.1 * .41667 = .45833.
        (adjust_saturation, 1.0, BEYOND, [(1.1, 0.45833, 0.0)]),
        # Without a channel above 0 there is no saturation: all become the greatest.
        (adjust_saturation, 1.5, [(-0.2, -0.1, -0.3)], [(-0.1, -0.1, -0.1)]),
        # Hue knows no zero: (.4, .2, 0) - .5 turned by a third is (0, .4, .2) - .5.
        (adjust_hue, 1 / 3, [(-0.1, -0.3, -0.5)], [(-0.5, -0.1, -0.3)]),
        (adjust_brightness, -0.5, TWO, [(-0.3, -0.1, 0.1), (0.4, -0.4, -0.2)]),
    ],
)
def test_without_clipping_the_operations_are_tensorflows(operation, amount, before, expected):
    pixels = 255 * np.array([before], np.float32)
    after = operation(pixels, amount, clip=False)
    assert after.dtype == np.float32
    np.testing.assert_allclose(after[0] / 255, expected, atol=1e-5)
    # Clipping does that and no more.
    clipped = operation(pixels, amount, clip=True)
    np.testing.assert_allclose(clipped, np.clip(after, 0, 255), atol=1e-4)


def test_pixels_on_both_sides_of_zero_turn_alike():
    # What the darkest pixel of an image is must not show in the others.
    pixels = 255 * np.array([[(1.1, 0.4, -0.1), (0.2, 0.4, 0.6), (-0.1, -0.3, -0.5)]], np.float32)
    together = adjust_hue(pixels, 0.05, clip=False)
    for place in range(3):
        alone = adjust_hue(pixels[:, place : place + 1], 0.05, clip=False)
        np.testing.assert_allclose(together[:, place : place + 1], alone, atol=1e-3)


@pytest.mark.parametrize("kind", [BRIGHTNESS, CONTRAST, HUE, SATURATION])
def test_clip_false_leaves_values_beyond_the_range(kind):
    before = sample()
    before = replace(before, image=1.5 * before.image.astype(np.float32) - 60)
    both = [values(kind(clip=clip), before, 3) for clip in (True, False)]
    assert both[1].max() > 255
    np.testing.assert_allclose(both[0], np.clip(both[1], 0, 255), atol=1e-3)


def test_every_value_has_a_separate_factor():
    before = of_pixels([100] * 200, [250] * 200)
    image = augmented(schema.RandomPixelValueScale(), before).image
    factors = image[0] / 100
    assert factors.min() >= 0.9
    assert factors.max() < 1.1
    assert factors.std() > 0.05  # uniform: 0.2 / sqrt(12) = 0.058
    assert len(np.unique(factors)) > 550
    assert image[1].max() == 255
    assert image.dtype == np.float32


def test_gamma_by_hand():
    # (51 / 255)^2 = .04, times 255 = 10.2; half of it with a gain of .5; 255 stays where it is.
    image = augmented(schema.AdjustGamma(gamma=2.0), of_pixels([0, 51, 255])).image
    np.testing.assert_allclose(image[0, :, 0], [0, 10.2, 255], rtol=1e-5)
    image = augmented(schema.AdjustGamma(gamma=2.0, gain=0.5), of_pixels([0, 51, 255])).image
    np.testing.assert_allclose(image[0, :, 0], [0, 5.1, 127.5], rtol=1e-5)
    # Values are not clipped above, and negative ones count as 0.
    before = of_pixels([-7, 255], dtype=np.float32)
    image = augmented(schema.AdjustGamma(gamma=0.5, gain=2.0), before).image
    assert image[0, :, 0].tolist() == [0, 510]


def test_one_range_is_mapped_to_another_and_means_are_subtracted_from_their_channels():
    settings = schema.NormalizeImage(target_min=-1.0, target_max=1.0)
    image = augmented(settings, of_pixels([0, 127.5, 255], dtype=np.float32)).image
    np.testing.assert_allclose(image[0, :, 0], [-1, 0, 1], atol=1e-6)
    settings = schema.SubtractChannelMean(means=(1.0, 2.0, 300.0))
    image = augmented(settings, of_pixels([[10, 20, 30], [0, 0, 0]])).image
    assert image[0].tolist() == [[9, 18, -270], [-1, -2, -300]]


def test_gray_has_the_usual_weights_in_three_channels():
    # .2989 * 10 + .587 * 20 + .114 * 30 = 2.989 + 11.74 + 3.42
    image = augmented(schema.RgbToGray(), of_pixels([[10, 20, 30]])).image
    np.testing.assert_allclose(image[0, 0], [18.149] * 3, rtol=1e-6)
    before = sample(size=(2, 2))
    gray = sum(after is not before for after in many(schema.RandomRgbToGray(), before, 2000))
    assert abs(gray - 200) < 60  # a tenth; 4.5 standard deviations
    assert augmented(schema.RandomRgbToGray(probability=0.0), before) is before


PATCHES, NOISE = schema.RandomBlackPatches, schema.RandomPatchGaussian


def flat(size, value=128):
    before = sample(size=size)
    return replace(before, image=np.full_like(before.image, value))


def test_a_patch_is_a_black_square_inside_the_image():
    # A tenth of the short side of 50.
    settings = PATCHES(max_patches=1, probability=1.0)
    corners = set()
    for after in many(settings, flat((50, 80))):
        rows, columns = np.nonzero((after.image == 0).all(axis=2))
        assert len(rows) == 25
        assert np.ptp(rows) == np.ptp(columns) == 4
        corners.add((rows.min(), columns.min()))
    # First rows from 0 to 44, cut from below .9 * 50 = 45; columns to below .9 * 80 = 72.
    assert max(y for y, _ in corners) <= 44
    assert max(x for _, x in corners) <= 71
    assert len(corners) > 200


def test_each_patch_is_drawn_independently():
    # Patches of one pixel on many pixels: as good as never one upon the other.
    settings = PATCHES(max_patches=10, probability=0.3, size_ratio=0.004)
    counts = [(a.image == 0).all(axis=2).sum() for a in many(settings, flat((250, 250)), 300)]
    assert abs(np.mean(counts) - 3) < 0.4  # sqrt(10 * .3 * .7 / 300) = .084
    assert max(counts) <= 10
    assert (augmented(PATCHES(probability=0.0), sample()).image == sample().image).all()


def test_noise_stays_in_its_square():
    settings = NOISE(min_patch_size=7, max_patch_size=8, min_stddev=0.1, max_stddev=0.1)
    sizes = set()
    for after in many(settings, flat((60, 60))):
        rows, columns = np.nonzero((after.image != 128).any(axis=2))
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert len(rows) == height * width
        sizes.add((height, width))
    # At an edge at least the centre and what follows it is left: 4 of 7.
    assert max(sizes) == (7, 7)
    assert min(min(size) for size in sizes) == 4


def test_an_even_square_begins_one_pixel_earlier():
    settings = NOISE(min_patch_size=2, max_patch_size=2, min_stddev=0.1, max_stddev=0.1)
    # On one pixel, the square of two covers it whether it begins at -1 or at 0 ...
    assert (augmented(settings, flat((1, 1))).image != 128).all()
    # ... and on two rows the centre of row 0 gives rows -1 and 0, the centre of row 1 rows 0 and 1.
    shapes = {
        tuple(np.nonzero((after.image[:, 0] != 128).any(axis=1))[0])
        for after in many(settings, flat((2, 1)), 40)
    }
    assert shapes == {(0,), (0, 1)}


def test_noise_has_the_deviation_that_was_drawn():
    settings = NOISE(min_patch_size=200, max_patch_size=200, min_stddev=0.05, max_stddev=0.05)
    after = augmented(settings, flat((60, 60)))
    changed = after.image[after.image != 128] - 128
    assert abs(changed.std() - 0.05 * 255) < 0.8
    assert abs(changed.mean()) < 0.8
    # Noise is clipped.
    settings = NOISE(min_patch_size=99, max_patch_size=99, min_stddev=9.0, max_stddev=9.0)
    image = augmented(settings, flat((30, 30))).image
    assert image.min() == 0
    assert image.max() == 255


def test_random_coef_leaves_the_image_alone():
    before = sample()
    assert augmented(NOISE(random_coef=1.0), before) is before
    assert augmented(schema.RandomJpegQuality(random_coef=1.0), before) is before


def test_a_lower_quality_is_further_from_the_image():
    before = sample(size=(64, 64))

    def error(quality):
        settings = schema.RandomJpegQuality(min_quality=quality, max_quality=quality)
        after = augmented(settings, before)
        assert after.image.dtype == np.uint8
        return np.abs(after.image.astype(float) - before.image).mean()

    assert error(95) < 2
    assert error(95) < error(40) < error(5)


def test_compression_keeps_the_channels_in_order():
    before = flat((16, 16))
    before.image[:] = [200, 60, 20]
    settings = schema.RandomJpegQuality(min_quality=95, max_quality=95)
    np.testing.assert_allclose(augmented(settings, before).image[8, 8], [200, 60, 20], atol=3)
