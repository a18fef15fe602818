"""Unit and layout of the boxes of a set, recognised from all of them."""

from pathlib import Path

import numpy as np
import pytest

from stillbox.records.annotations import AnnotatedImage
from stillbox.records.box_numbers import BoxNumbers, read_numbers
from stillbox.records.problems import ConversionLog
from stillbox.references import Parameter, worded
from tests.helpers import refused
from tests.records.builders import image_bytes

HEIGHT, WIDTH = 480, 640


def boxes_of(count=40, seed=0, least=12, most=200):
    """ymin, xmin, ymax, xmax in pixels of boxes that are spread over the image."""
    rng = np.random.default_rng(seed)
    sizes = rng.uniform(least, most, (count, 2))
    low = rng.uniform(0, 1, (count, 2)) * (np.array([HEIGHT, WIDTH]) - sizes)
    return np.concatenate([low, low + sizes], axis=1)


def written(boxes, numbers):
    """The four numbers of each box, x first, as a file of such numbers has them."""
    low, high = boxes[:, 1::-1], boxes[:, 3:1:-1]
    sides = np.array([WIDTH, HEIGHT])
    scale = {"pixels": 1, "fractions": 1 / sides, "percent": 100 / sides}[numbers.unit]
    first, second = {
        "corners": (low, high),
        "corner_size": (low, high - low),
        "centre_size": ((low + high) / 2, high - low),
    }[numbers.layout]
    return np.concatenate([first * scale, second * scale], axis=1)


def read_as(values, numbers):
    """Corners, y first, as a reader of a format makes them of four numbers."""
    first, second = values[:, :2], values[:, 2:]
    low, high = {
        "corners": (first, second),
        "corner_size": (first, first + second),
        "centre_size": (first - second / 2, first + second / 2),
    }[numbers.layout]
    return np.concatenate([low[:, ::-1], high[:, ::-1]], axis=1)


def item(boxes, numbers, size=(HEIGHT, WIDTH), **values):
    defaults = {
        "path": Path("gone.jpg"), "where": "a.json: image 1", "image_id": "1", "filename": "1.jpg",
        "height": size[0], "width": size[1], "pixel_boxes": boxes,
        "class_ids": np.ones(len(boxes), np.int32), "relative": numbers.unit != "pixels",
    }  # fmt: skip
    return AnnotatedImage(**(defaults | values))


def pixels_of(image):
    """The boxes of an item in pixels."""
    return image.pixel_boxes * (np.array([HEIGHT, WIDTH] * 2) if image.relative else 1)


FORMATS = {
    "VOC": BoxNumbers("pixels", "corners"),
    "COCO": BoxNumbers("pixels", "corner_size"),
    "YOLO": BoxNumbers("fractions", "centre_size"),
    "Open Images": BoxNumbers("fractions", "corners"),
}
MEANT = [
    BoxNumbers(unit, layout)
    for unit in ("pixels", "fractions", "percent")
    for layout in ("corners", "corner_size", "centre_size")
]


@pytest.mark.parametrize("meant", MEANT, ids=str)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_numbers_of_any_unit_and_layout_are_found_in_any_format(name, meant, seed):
    # Enough large boxes that a wrong layout puts a quarter of them outside.
    numbers, boxes = FORMATS[name], boxes_of(seed=seed, least=80, most=300)
    stored = read_as(written(boxes, meant), numbers)
    items = [item(rows, numbers) for rows in np.array_split(stored, 10)]
    log = ConversionLog()
    read = read_numbers(items, [None] * 10, numbers, log)
    np.testing.assert_allclose(np.concatenate(list(map(pixels_of, read))), boxes, atol=1e-6)
    assert bool(list(log)) == (meant != numbers)


@pytest.mark.parametrize("name", FORMATS)
def test_boxes_as_the_format_says_are_left_alone(name):
    numbers, log = FORMATS[name], ConversionLog()
    for seed in range(30):
        stored = read_as(written(boxes_of(1 + seed % 12, seed), numbers), numbers)
        given = item(stored, numbers)
        (read,) = read_numbers([given], [None], numbers, log)
        assert read is given or np.array_equal(read.pixel_boxes, given.pixel_boxes)
    assert not list(log)


def test_the_real_size_is_looked_up_where_none_is_claimed():
    numbers, boxes = FORMATS["YOLO"], boxes_of()
    stored = read_as(written(boxes, BoxNumbers("pixels", "corners")), numbers)
    content = image_bytes(HEIGHT, WIDTH)
    given = item(stored, numbers, (0, 0), stored=lambda: content)
    (read,) = read_numbers([given], [None], numbers, ConversionLog())
    np.testing.assert_allclose(read.pixel_boxes, boxes, atol=1e-6)
    assert not read.relative


def test_each_split_has_numbers_of_its_own():
    numbers, boxes = FORMATS["VOC"], boxes_of()
    right = item(boxes, numbers)
    other = item(boxes / ([HEIGHT, WIDTH] * 2), numbers)
    log = ConversionLog()
    read = read_numbers([right, other], ["train", "val"], numbers, log)
    for image in read:
        np.testing.assert_allclose(pixels_of(image), boxes, atol=1e-6)
    assert [problem.count for problem in log] == [1]


def test_two_readings_that_fit_stop_and_the_user_chooses():
    # In the middle third of the image, corners are also some centre and size, and vice versa.
    boxes = np.array([[160.0, 200, 200, 240]] * 5) + np.arange(5)[:, None]
    numbers = FORMATS["YOLO"]
    stored = read_as(written(boxes, BoxNumbers("pixels", "corners")), numbers)
    with refused("a.json: image 1") as caught:
        read_numbers([item(stored, numbers)], [None], numbers, ConversionLog())
    assert "box_numbers=pixels:corners" in caught.value.fix
    chosen = BoxNumbers.from_name("pixels:corners")
    (read,) = read_numbers([item(stored, numbers)], [None], numbers, ConversionLog(), chosen)
    np.testing.assert_allclose(read.pixel_boxes, boxes)


def test_another_layout_of_few_boxes_that_stick_out_is_asked_for():
    # Objects that enter the image from the left: 4 of 20 boxes reach beyond the border.
    boxes = np.array([[200.0, 200, 240, 260]] * 16 + [[200, -60, 240, 60]] * 4)
    numbers = FORMATS["YOLO"]
    stored = read_as(written(boxes, numbers), numbers)
    with refused("a.json: image 1", "20%", 20) as caught:
        read_numbers([item(stored, numbers)], [None], numbers, ConversionLog())
    assert worded(caught.value.fix).endswith("box_numbers=fractions:centre_size")
    (read,) = read_numbers([item(stored, numbers)], [None], numbers, ConversionLog(), numbers)
    np.testing.assert_array_equal(read.pixel_boxes, stored)


def test_numbers_that_are_nothing_stop():
    numbers = FORMATS["VOC"]
    stored = boxes_of() * 1000
    with refused("a.json: image 1"):
        read_numbers([item(stored, numbers)], [None], numbers, ConversionLog())


def test_single_boxes_of_another_unit_are_dropped():
    for numbers, wrong, reason in (
        (FORMATS["YOLO"], [30, 20, 130, 120], "box in pixels, not in 0..1"),
        (FORMATS["VOC"], [0.1, 0.2, 0.5, 0.6], "box in fractions, in a format of pixels"),
    ):
        stored = read_as(written(boxes_of(), numbers), numbers)
        log = ConversionLog()
        given = item(np.concatenate([stored, [wrong]]), numbers)
        (read,) = read_numbers([given], [None], numbers, log)
        np.testing.assert_array_equal(read.pixel_boxes, stored)
        assert [(problem.reason, problem.action) for problem in log] == [(reason, "box dropped")]


def test_inverted_corners_and_boxes_beyond_the_border_keep_their_reading():
    numbers, boxes = FORMATS["VOC"], boxes_of()
    inverted = boxes.copy()
    inverted[::3] = inverted[::3][:, [2, 3, 0, 1]]
    beyond = boxes.copy()
    beyond[::4, 3] += 60
    for stored in (inverted, beyond):
        (read,) = read_numbers([item(stored, numbers)], [None], numbers, ConversionLog())
        np.testing.assert_array_equal(read.pixel_boxes, stored)


def test_a_name_that_is_no_reading_is_refused():
    with refused(Parameter("box_numbers"), "pixels:corners"):
        BoxNumbers.from_name("pixel:corner")
