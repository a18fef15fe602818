import colorsys
from dataclasses import replace

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.augment.colors import (
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
        np.testing.assert_allclose(
            row, np.clip([delta, 100 + delta, 255 + delta], 0, 255), atol=1e-4
        )


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
    # The turn that was drawn, from the one pixel whose hue is clearest.
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
    for settings in (
        HUE(max_turn=0.0),
        SATURATION(min_factor=1.0, max_factor=1.0),
        CONTRAST(min_factor=1.0, max_factor=1.0),
        BRIGHTNESS(max_delta=0.0),
    ):
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
