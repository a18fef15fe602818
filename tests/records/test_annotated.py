import numpy as np
import pytest

from stillbox.records.annotated import AnnotatedImage, to_example
from stillbox.records.image_files import PreparedImage
from stillbox.records.problems import ProblemLog


def item_of(tmp_path, boxes, height, width):
    count = len(boxes)
    return AnnotatedImage(
        path=tmp_path / "a.jpg",
        where="a.xml",
        image_id="a",
        filename="a.jpg",
        height=height,
        width=width,
        pixel_boxes=np.array(boxes, np.float64).reshape(-1, 4),
        class_ids=np.ones(count, np.int32),
        is_crowd=np.zeros(count, np.bool_),
        difficult=np.zeros(count, np.bool_),
        truncated=np.zeros(count, np.bool_),
        area=np.full(count, 100, np.float32),
    )


def test_coordinates_are_the_nearest_float32_to_the_quotient(tmp_path):
    log = ProblemLog()
    item = item_of(tmp_path, [[12.34, 217.62, 240.54, 359.17]], 427, 640)
    example = to_example(item, PreparedImage(b"x", 427, 640), log)
    expected = np.float32([12.34 / 427, 217.62 / 640, 240.54 / 427, 359.17 / 640])
    np.testing.assert_array_equal(example.boxes[0], expected)
    assert not list(log)


# The image is 40 x 60 (height x width).
@pytest.mark.parametrize(
    ("claimed", "box", "frame", "outcome"),
    [
        # resized to half after the annotation
        ((80, 120), [10, 20, 70, 100], (80, 120), "boxes divided by the annotation's size"),
        # the size in the annotation is wrong: the box does not fit into it
        ((20, 30), [10, 20, 35, 50], (40, 60), "boxes divided by the real size"),
        # height and width exchanged, the box fits the real size
        ((60, 40), [10, 5, 35, 38], (40, 60), "boxes divided by the real size"),
        # it fits into neither
        ((20, 30), [10, 20, 35, 90], (20, 30), "boxes divided by the annotation's size"),
        # no size
        ((0, 0), [10, 20, 35, 50], (40, 60), "real size used"),
    ],
)
def test_boxes_decide_between_two_image_sizes(tmp_path, claimed, box, frame, outcome):
    log = ProblemLog()
    item = item_of(tmp_path, [box], *claimed)
    example = to_example(item, PreparedImage(b"x", 40, 60), log)
    np.testing.assert_allclose(example.boxes[0], np.array(box) / np.array([*frame, *frame]), 1e-6)
    assert (example.height, example.width) == (40, 60)
    # 40 * 60 / (80 * 120) = 1/4 of the area is left after the resize
    scale = 2400 / (frame[0] * frame[1])
    np.testing.assert_allclose(example.area, [100 * scale])
    (problem,) = log
    assert problem.action == outcome
    assert problem.examples == [f"a.xml: {claimed[1]} x {claimed[0]}, image 60 x 40"]


def test_nan_boxes_do_not_decide_between_two_image_sizes(tmp_path):
    log = ProblemLog()
    item = item_of(tmp_path, [[np.nan] * 4, [10, 20, 70, 100]], 80, 120)
    example = to_example(item, PreparedImage(b"x", 40, 60), log)
    np.testing.assert_allclose(example.boxes[1], [0.125, 1 / 6, 0.875, 5 / 6], 1e-6)


def test_no_boxes_at_all(tmp_path):
    item = item_of(tmp_path, [], 80, 120)
    example = to_example(item, PreparedImage(b"x", 40, 60), ProblemLog())
    assert example.boxes.shape == (0, 4)
