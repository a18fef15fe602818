"""Copy-paste of the rectangles of boxes."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.augment.copy_paste import uncovered
from stillbox.records.tile_grid import visible_shares
from tests.inputs.augment.samples import Alone, rng, sample

STILL = schema.CopyPaste(probability=1.0, min_scale=1.0, max_scale=1.0, flip_probability=0.0)
BOX = (0.25, 0.25, 0.75, 0.5)


def black(boxes=(), size=(40, 80), dtype=np.uint8):
    return replace(sample(boxes=boxes, size=size), image=np.zeros((*size, 3), dtype))


def other(boxes=(BOX,), class_ids=None, weights=None, size=(40, 80)):
    """A black picture with white boxes."""
    made = black(boxes, size)
    for ymin, xmin, ymax, xmax in (made.boxes * np.tile(size, 2)).round().astype(int):
        made.image[ymin:ymax, xmin:xmax] = 255
    count = len(boxes)
    weights = np.array([1] * count if weights is None else weights, np.float32)
    ids = np.array([7] * count if class_ids is None else class_ids, np.int32)
    return replace(made, class_ids=ids, weights=weights)


def pasted(before, partner, config=STILL, count=100):
    return [apply_augmentations([config], before, rng(n), Alone(partner)) for n in range(count)]


def pixels(after):
    return after.boxes * np.tile(after.size, 2)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_pasted_box_lies_where_its_pixels_do(dtype):
    places = set()
    for after in pasted(black(dtype=dtype), other(), replace(STILL, max_objects=1)):
        assert (after.image.dtype, after.class_ids.tolist()) == (dtype, [7])
        rows, columns = np.nonzero(after.image[..., 0])
        place = [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]
        np.testing.assert_allclose(pixels(after)[0], place, atol=1e-4)
        # The object has 20 x 20 pixels of 40 x 80, of which a quarter is inside at least.
        sides = place[2] - place[0], place[3] - place[1]
        assert min(sides) >= 10 and max(sides) <= 20
        places.add(tuple(place))
    assert len(places) > 50
    unclipped = replace(STILL, max_objects=1, clip_boxes=False)
    for after in pasted(black(dtype=dtype), other(), unclipped):
        box = pixels(after)[0]
        np.testing.assert_allclose(box[2:] - box[:2], 20, atol=1e-4)


def test_sizes_have_a_factor_and_the_boxes_of_the_image_come_first():
    config = replace(STILL, min_scale=0.5, max_scale=1.5, max_objects=1, clip_boxes=False)
    before = black([(0, 0, 0.1, 0.1)])
    both = [pixels(after)[1].round() for after in pasted(before, other(), config)]
    sides = [box[2] - box[0] for box in both]
    assert 10 <= min(sides) < 13 and 27 < max(sides) <= 30
    for after in pasted(before, other(), config, 5):
        np.testing.assert_array_equal(after.boxes[0], before.boxes[0])
        assert after.class_ids.tolist() == [1, 7]
    assert not before.image.any()


def test_objects_cover_no_box_too_much():
    before = black([(0, 0, 0.5, 0.5), (0.5, 0.5, 1, 1)])
    config = replace(STILL, max_objects=4, clip_boxes=False)
    numbers = Counter()
    for after in pasted(before, other(), config):
        boxes = pixels(after).astype(np.float64)
        numbers[len(boxes)] += 1
        # Each box against every one that was pasted later.
        for later in range(2, len(boxes)):
            shares = visible_shares(boxes[:later], tuple(boxes[later].tolist()))
            assert (shares <= 0.3 + 1e-6).all()
    assert numbers[3] and numbers[4]
    whole = black([(0, 0, 1, 1)])
    (after, *_) = pasted(whole, other(), replace(config, max_covered=0.0))
    assert len(after.boxes) == 1 and not after.image.any()


def test_each_class_of_the_other_image_is_as_likely():
    many = [(0.1, 0.1 * n, 0.2, 0.1 * n + 0.05) for n in range(9)]
    partner = other([*many, (0.6, 0.6, 0.8, 0.8)], [1] * 9 + [2])
    config = replace(STILL, max_objects=1)
    drawn = Counter(int(after.class_ids[0]) for after in pasted(black(), partner, config, 400))
    # Half of 400, and four standard deviations of sqrt(100) = 10.
    assert abs(drawn[2] - 200) < 40


def test_ignored_and_covered_boxes_are_not_taken():
    # The second lies in the first and covers a quarter of it; the third is ignored.
    partner = other(
        [(0, 0, 0.5, 0.5), (0, 0, 0.25, 0.25), (0.6, 0.6, 1, 1)], [1, 2, 3], weights=[1, 1, 0]
    )
    assert uncovered(partner, 0.3).tolist() == [0]
    assert uncovered(partner, 0.2).tolist() == []
    assert {tuple(set(a.class_ids.tolist())) for a in pasted(black(), partner)} <= {(1,), ()}
    (after,) = pasted(black(), partner, replace(STILL, max_covered=0.2), 1)
    assert not len(after.boxes)


def test_an_object_larger_than_the_image_and_a_partner_without_boxes_change_nothing():
    before = black([BOX], size=(10, 10))
    for partner in (other(size=(80, 160)), other(())):
        (after,) = pasted(before, partner, count=1)
        assert len(after.boxes) == 1 and not after.image.any()


def test_a_box_below_a_pixel_is_a_pixel():
    (after,) = pasted(black(), other([(0.999, 0.999, 1, 1)]), replace(STILL, max_objects=1), 1)
    np.testing.assert_allclose(pixels(after)[0, 2:] - pixels(after)[0, :2], 1, atol=1e-4)
