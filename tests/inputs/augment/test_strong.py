"""Large-scale jitter, the random affine map, mosaic and mixup on pictures of one colour."""

from dataclasses import replace

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.augment.strong import (
    AffineDraws,
    JitterDraws,
    MixUpDraws,
    affine_matrix,
    combine,
    jitter,
    mix,
    place_center,
    place_jittered,
    transform,
)
from tests.helpers import refused
from tests.inputs.augment.samples import Alone, augmented, many, rng, sample

PLAIN = AffineDraws(*[0.5] * 6)
STILL = {"max_rotation": 0.0, "max_shear": 0.0, "max_shift": 0.0, "min_scale": 1.0}


def square(size=(40, 80), box=(0.25, 0.25, 0.75, 0.5)):
    """A black picture with a white box."""
    blank = sample(boxes=[box], size=size)
    image = np.zeros_like(blank.image)
    ymin, xmin, ymax, xmax = (np.array(box) * np.tile(size, 2)).round().astype(int)
    image[ymin:ymax, xmin:xmax] = 255
    return replace(blank, image=image)


def of(gray, size=(40, 80), boxes=((0.25, 0.25, 0.75, 0.5),)):
    return replace(sample(boxes=boxes, size=size), image=np.full((*size, 3), gray, np.uint8))


def white(image):
    """ymin, xmin, ymax, xmax of what is more white than black, in pixels."""
    rows, columns = np.nonzero(image[..., 0] > 127)
    return [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]


def pixels(after):
    return after.boxes * np.tile(after.size, 2)


# ---- large-scale jitter -------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 0.3, 0.6, 0.99])
def test_a_jittered_box_lies_where_its_pixels_do(scale):
    config = schema.LargeScaleJitter(output_size=64, min_scale=0.5, pad_color=(0.0, 0.0, 0.0))
    before = square()
    placement = place_jittered(before.size, config, JitterDraws(scale, (0.5, 0.3)))
    after = jitter(before, config, placement)
    assert after.size == (64, 64)
    np.testing.assert_allclose(pixels(after)[0], white(after.image), atol=1)


def test_the_long_side_is_a_factor_of_the_output():
    config = schema.LargeScaleJitter(output_size=100, min_scale=0.1, max_scale=2.0)
    whole = [place_jittered((40, 80), config, JitterDraws(d, (0, 0))).size for d in (0.0, 0.5)]
    assert whole == [(5, 10), (53, 105)]
    placement = place_jittered((40, 80), config, JitterDraws(1 - 1e-9, (1 - 1e-9, 1 - 1e-9)))
    # The last place counts.
    assert placement == ((100, 199), (0, 99), (100, 100))


def test_an_image_that_is_left_without_boxes_stays_as_background():
    config = schema.LargeScaleJitter(output_size=20, min_scale=2.0, max_scale=2.0)
    before = square(box=(0.0, 0.0, 0.1, 0.1))
    after = jitter(before, config, place_jittered(before.size, config, JitterDraws(0, (0, 0.9))))
    assert after.size == (20, 20)
    assert after.boxes.shape == (0, 4)


def test_boxes_that_become_too_small_go():
    def left(least):
        config = schema.LargeScaleJitter(output_size=8, max_scale=1.0, min_box_side=least)
        return {len(after.boxes) for after in many(config, square(), 20)}

    assert left(0.01) == {1}
    assert left(0.5) == {0, 1}


# ---- the affine map -----------------------------------------------------------------------------


def test_a_map_without_ranges_is_the_image():
    before = sample()
    after = augmented(schema.RandomAffine(**STILL, max_scale=1.0), before)
    assert (after.image == before.image).all()
    np.testing.assert_allclose(after.boxes, before.boxes, atol=1e-6)


@pytest.mark.parametrize(
    ("draws", "expected"),
    [
        (PLAIN, [10, 20, 30, 40]),
        (PLAIN._replace(scale=0.0), [5, 10, 15, 20]),
        (PLAIN._replace(shift_x=0.75, shift_y=0.25), [6, 28, 26, 48]),
    ],
)
def test_a_moved_box_lies_where_its_pixels_do(draws, expected):
    config = schema.RandomAffine(min_scale=0.5, max_scale=1.5, max_shift=0.2)
    matrix = affine_matrix((40, 80), config, draws)
    after = transform(square(), (40, 80), replace(config, pad_color=(0.0,) * 3), matrix)
    np.testing.assert_allclose(pixels(after), [expected], atol=1e-4)
    np.testing.assert_allclose(white(after.image), expected, atol=1)


def test_a_turned_box_is_the_bounding_box_of_its_corners():
    config = schema.RandomAffine(**STILL | {"max_rotation": 90.0}, max_scale=1.0, clip_boxes=False)
    before = square(size=(40, 40), box=(0.25, 0.25, 0.5, 1.0))
    matrix = affine_matrix((40, 40), config, PLAIN._replace(rotation=1.0))
    after = transform(before, (40, 40), config, matrix)
    # By the clock about the upper left corner: x goes down, y to the left, out of the picture.
    assert after.boxes.shape == (0, 4)
    matrix[0, 2] = 40
    after = transform(before, (40, 40), config, matrix)
    np.testing.assert_allclose(pixels(after), [[10, 20, 40, 30]], atol=1e-4)
    np.testing.assert_allclose(white(after.image), [10, 20, 40, 30], atol=1)


def test_what_a_map_moves_out_of_the_image_is_gray():
    config = schema.RandomAffine(**STILL | {"min_scale": 0.5}, max_scale=0.5, output_size=(30, 50))
    after = augmented(config, square())
    assert after.size == (30, 50)
    assert (after.image[21:] == 114).all()
    assert (after.image[:, 41:] == 114).all()


# ---- mosaic -------------------------------------------------------------------------------------

SMALL = schema.Mosaic(height=40, width=80)


def test_a_mosaic_has_a_picture_in_each_quarter():
    pictures = [of(gray) for gray in (10, 20, 30, 40)]
    after = combine(pictures, SMALL, place_center(SMALL, (0.5, 0.5)))
    assert after.size == (80, 160)
    assert after.image[::40, ::80, 0].tolist() == [[10, 20], [30, 40]]
    starts = [[0, 0], [0, 80], [40, 0], [40, 80]]
    expected = [[y + 10, x + 20, y + 30, x + 40] for y, x in starts]
    np.testing.assert_allclose(pixels(after), expected, rtol=1e-6)


def test_pictures_and_boxes_are_cut_at_the_edge_of_the_canvas():
    corner = square(box=(0.0, 0.0, 0.25, 0.25))
    after = combine([square(box=(0.25, 0.5, 0.75, 0.75)), *[corner] * 3], SMALL, (20, 40))
    # Of the first picture the lower right quarter remains, and of its box the lower half. The
    # corners of the next two are cut off.
    expected = [[0, 0, 10, 20], [20, 40, 30, 60]]
    np.testing.assert_allclose(pixels(after), expected, atol=1e-4)
    assert (after.image[0:10, 0:20] > 200).all()
    assert (after.image[60:] == 114).all()
    assert (after.image[:, 120:] == 114).all()


def test_classes_weights_and_order_are_those_of_the_pictures():
    pictures = [of(10, boxes=[(0.1, 0.1, 0.9, 0.9)] * count) for count in (2, 0, 3, 1)]
    after = combine(pictures, SMALL, (40, 80))
    assert after.class_ids.tolist() == [1, 2, 1, 2, 3, 1]
    assert after.weights.tolist() == [0, 1, 0, 0.5, 1, 0]


def test_a_mosaic_keeps_whole_numbers_unless_the_image_has_others():
    whole, fractions = of(10), replace(of(20), image=np.full((40, 80, 3), 20.5, np.float32))
    assert combine([whole] * 4, SMALL, (40, 80)).image.dtype == np.uint8
    mixed = combine([fractions, whole, whole, whole], SMALL, (40, 80))
    assert mixed.image[0, 0].tolist() == [20.5] * 3
    assert mixed.image[0, 159].tolist() == [10] * 3


def test_centres_are_uniform_between_their_ends():
    assert place_center(SMALL, (0.0, 0.0)) == (20, 40)
    assert place_center(SMALL, (1 - 1e-9, 1 - 1e-9)) == (59, 119)


# ---- mixup --------------------------------------------------------------------------------------

MIX = schema.MixUp(height=40, width=80)
AS_IT_IS = MixUpDraws(1.0, flip=False, offset=(0.0, 0.0))


def test_mixing_takes_the_mean_and_both_lists_of_boxes():
    other = of(101, boxes=[(0.0, 0.0, 0.5, 0.5), (0.5, 0.5, 1.0, 1.0)])
    after = mix(of(50), other, MIX, AS_IT_IS)
    assert np.unique(after.image).tolist() == [75]
    np.testing.assert_allclose(after.boxes[0], [0.25, 0.25, 0.75, 0.5])
    np.testing.assert_allclose(after.boxes[1:], other.boxes)
    assert after.weights.tolist() == [0, 0, 1]


def test_the_other_picture_is_mirrored_scaled_and_cut():
    after = mix(of(0, boxes=()), square(), MIX, MixUpDraws(1.5, flip=True, offset=(0.5, 0.25)))
    # 60 x 120, from row 10 and column 10; mirrored, the box has columns 60 to 90.
    np.testing.assert_allclose(pixels(after), [[5, 50, 35, 80]], atol=1e-4)
    np.testing.assert_allclose(white(2 * after.image), [5, 50, 35, 80], atol=1)


def test_a_small_picture_is_padded():
    after = mix(of(100, boxes=()), of(200), MIX, MixUpDraws(0.5, flip=False, offset=(0.9, 0.9)))
    assert after.image[10, 20, 0] == 150
    assert after.image[30, 60, 0] == (100 + 114) // 2
    np.testing.assert_allclose(pixels(after), [[5, 10, 15, 20]], rtol=1e-6)


def test_a_picture_without_boxes_changes_nothing():
    before = of(10)
    assert mix(before, of(200, boxes=()), MIX, AS_IT_IS) is before
    mixed = apply_augmentations([schema.MixUp()], before, rng(), Alone(of(200, boxes=())))
    assert mixed is before


# ---- both ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [schema.Mosaic, schema.MixUp], ids=lambda kind: kind.kind)
def test_probability_0_leaves_the_sample_and_draws_no_record(kind):
    class Nobody:
        def draw(self, rng, *, with_boxes=False):
            raise AssertionError("a record was drawn")

    before = sample()
    mixed = apply_augmentations([kind(probability=0.0)], before, rng(), Nobody())
    assert mixed is before


@pytest.mark.parametrize("kind", [schema.Mosaic, schema.MixUp], ids=lambda kind: kind.kind)
def test_without_records_to_draw_from_the_combination_is_refused(kind):
    with refused("train.augmentations", kind.kind):
        apply_augmentations([kind()], sample(), rng())
