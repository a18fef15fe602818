import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from tests.inputs.augment.samples import augmented, rng, sample

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
    before = sample()
    for number in range(200):
        assert apply_augmentations([FLIP(probability=0)], before, rng(number)) is before
        assert apply_augmentations([FLIP(probability=1)], before, rng(number)) is not before


def test_half_of_all_images_are_flipped():
    before = sample(size=(1, 1))
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
