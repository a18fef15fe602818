import numpy as np
import pytest

from stillbox.experiment import schema
from tests.inputs.augment.samples import augmented, many, sample

JITTER, DROP = schema.RandomJitterBoxes, schema.DropLabelProbabilistically
BOX = [[0.4, 0.3, 0.6, 0.5]]  # centre (.5, .4), .2 x .2


def shares(mode, ratio=0.5, box=BOX):
    """Returns how far every edge is from the centre, relative to half the size, `[300, 4]`."""
    ymin, xmin, ymax, xmax = box[0]
    centre = np.array([ymin + ymax, xmin + xmax] * 2) / 2
    half = np.array([ymax - ymin, xmax - xmin] * 2) / 2
    moved = np.stack([a.boxes[0] for a in many(JITTER(ratio=ratio, mode=mode), sample(boxes=box))])
    return (moved - centre) / half * [-1, -1, 1, 1]


@pytest.mark.parametrize(
    ("mode", "low", "high"),
    [
        ("default", 0.5, 1.5),
        ("expand", 1, 1.5),
        ("shrink", 0.5, 1),
        ("expand_symmetric", 1, 1.5),
        ("shrink_symmetric", 0.5, 1),
        ("expand_symmetric_xy", 1, 1.5),
        ("shrink_symmetric_xy", 0.5, 1),
    ],
)
def test_edges_move_within_their_range(mode, low, high):
    found = shares(mode)
    assert found.min() >= low - 1e-5
    assert found.max() <= high + 1e-5
    assert np.ptp(found) > 0.9 * (high - low)
    # How many of the four are drawn by themselves.
    independent = {"_xy": 1, "ric": 2}.get(mode[-3:], 4)
    different = np.mean([len(np.unique(row.round(4))) for row in found])
    assert different == pytest.approx(independent, abs=0.1)
    if independent == 2:
        np.testing.assert_allclose(found[:, :2], found[:, 2:], atol=1e-4)


def test_edges_end_at_the_image():
    corner = [[0.0, 0.0, 0.2, 0.2]]
    for after in many(JITTER(ratio=1.0), sample(boxes=corner), 50):
        assert after.boxes.min() >= 0


def test_a_symmetric_box_stops_at_the_first_edge_of_the_image():
    # .1 above and .05 beside the box: it may grow to 1.5 and 1.2 times its size.
    box = [[0.1, 0.05, 0.5, 0.55]]
    found = shares("expand_symmetric", ratio=1.0, box=box)
    np.testing.assert_allclose(found.max(axis=0), [1.5, 1.2, 1.5, 1.2], atol=1e-4)
    found = shares("expand_symmetric_xy", ratio=1.0, box=box)
    np.testing.assert_allclose(found.max(axis=0), [1.2] * 4, atol=1e-4)


def test_jitter_leaves_image_and_classes_alone():
    before = sample()
    after = augmented(JITTER(), before)
    assert after.image is before.image
    assert after.class_ids is before.class_ids


def test_boxes_of_one_class_are_dropped_at_random():
    before = sample(boxes=[[0, 0, 1, 1]] * 4)
    lucky = many(DROP(label=2, probability=0.25), before, 800)
    kept = [after.class_ids.tolist() for after in lucky]
    assert all(class_ids in ([1, 2, 3, 4], [1, 3, 4]) for class_ids in kept)
    assert abs(kept.count([1, 3, 4]) - 200) < 55  # 4.5 standard deviations
    assert augmented(DROP(label=2), before).weights.tolist() == pytest.approx([0, 2 / 3, 1])


def test_each_box_of_the_class_is_dropped_independently():
    before = sample(boxes=[[0, 0, 1, 1]] * 6)
    before.class_ids[:] = 1
    counts = {len(after.boxes) for after in many(DROP(label=1, probability=0.5), before)}
    assert counts == set(range(7))


def test_labels_are_remapped_by_their_label_map_ids():
    before = sample(boxes=[[0, 0, 1, 1]] * 4)
    after = augmented(schema.RemapLabels(original_labels=(1, 4), new_label=3), before)
    assert after.class_ids.tolist() == [3, 2, 3, 3]
    assert after.class_ids.dtype == np.int32
    assert before.class_ids.tolist() == [1, 2, 3, 4]


# ---- an image below or beside itself ------------------------------------------------------------


def concat(vertical, horizontal):
    return schema.RandomSelfConcatImage(
        vertical_probability=vertical, horizontal_probability=horizontal
    )


def test_an_image_below_itself_has_its_boxes_twice():
    before = sample()
    after = augmented(concat(1.0, 0.0), before)
    assert (after.image == np.concatenate([before.image] * 2)).all()
    # y is halved; the copy's is half an image further down.
    np.testing.assert_allclose(
        after.boxes,
        [
            [0.125, 0.25, 0.375, 0.5],
            [0.25, 0.5, 0.5, 1],
            [0.625, 0.25, 0.875, 0.5],
            [0.75, 0.5, 1, 1],
        ],
    )
    assert after.class_ids.tolist() == [1, 2, 1, 2]
    assert after.weights.tolist() == [0, 1, 0, 1]


def test_an_image_beside_itself():
    after = augmented(concat(0.0, 1.0), sample(boxes=[[0.25, 0.25, 0.75, 0.5]]))
    assert after.image.shape == (40, 160, 3)
    np.testing.assert_allclose(after.boxes, [[0.25, 0.125, 0.75, 0.25], [0.25, 0.625, 0.75, 0.75]])


def test_below_and_beside_are_independent():
    shapes = [after.image.shape[:2] for after in many(concat(0.5, 0.5), sample(size=(1, 1)), 800)]
    for shape in ((1, 1), (1, 2), (2, 1), (2, 2)):
        assert abs(shapes.count(shape) - 200) < 55  # 4.5 standard deviations
