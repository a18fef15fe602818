from dataclasses import replace

import numpy as np

from stillbox.experiment import schema
from tests.inputs.augment.samples import augmented, many, sample

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


def test_no_patch_no_change():
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
    # ... and on two rows the centre of row 0 gives rows -1 and 0, that of row 1 rows 0 and 1.
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


def test_noise_is_clipped():
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
