import numpy as np

from stillbox.experiment import schema
from tests.inputs.augment.samples import augmented, many, sample

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


def test_sides_are_cut_to_whole_pixels():
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
