"""Sums, pixels and boxes that the original's operations gave .

The image of the goldens is not written down with them. Its size follows from the boxes, which are
multiples of 1/24 and 1/32, and its formula from pixels that shifts bring to the corner: the first
pixel of `translate_x(10)` is that of column 10, [30, 90, 90], and that of `translate_y(10)` is row
10's, [70, 150, 90]. Sums of all three channels and the other two pixels confirm it. The boxes are
known up to what is cut off: others in the same pixels would do as well.
"""

import json
import re
from functools import cache

import numpy as np
import pytest

from stillbox.inputs.augment.autoaugment import boxes, colors, warps
from stillbox.inputs.augment.autoaugment.operations import argument_of
from tests.shared import SHARED, needs_shared

BOXES = np.array([[0.1, 0.2, 0.5, 0.7], [0, 0, 1, 1], [0.8, 0.9, 0.95, 0.99]], np.float32)
PIXELS = (0, 0), (5, 7), (20, 30)

COLORS = {
    "color": colors.color,
    "brightness": colors.brightness,
    "sharpness": colors.sharpness,
    "contrast": colors.contrast,
    "posterize": lambda image, bits: colors.posterize(image, int(bits)),
    "solarize": lambda image, threshold: colors.solarize(image, int(threshold)),
    "solarize_add": lambda image, addition: colors.solarize_add(image, int(addition)),
    "autocontrast": lambda image, _: colors.auto_contrast(image),
    "equalize": lambda image, _: colors.equalize(image),
}
MOVES = {
    "rotate_bbox": (warps.rotate, boxes.rotate_boxes, ()),
    "translate_x": (warps.translate, boxes.translate_boxes, (1,)),
    "translate_y": (warps.translate, boxes.translate_boxes, (0,)),
    "shear_x": (warps.shear, boxes.shear_boxes, (1,)),
    "shear_y": (warps.shear, boxes.shear_boxes, (0,)),
}


@cache
def goldens():
    return json.loads((SHARED / "goldens/tpu_detection/autoaugment.json").read_text())


def parsed(call):
    name, argument = re.fullmatch(r"(\w+?)(?:\((.*)\))?", call).groups()
    return name, float(argument or 0)


def calls(table):
    """Yields the goldens of one table; without the shared folder there are none."""
    found = goldens() if SHARED.is_dir() else {}
    return [call for call in found if "." not in call.split("(")[0] and parsed(call)[0] in table]


def image():
    y, x = np.mgrid[0:24, 0:32]
    return np.stack([7 * y + 3 * x, 11 * y + 5 * x + 40, y * x + 90], axis=-1).astype(np.uint8)


def assert_golden(result, golden):
    assert result.dtype == np.uint8
    assert result.reshape(-1, 3).sum(axis=0).tolist() == golden["sum"]
    assert [result[pixel].tolist() for pixel in PIXELS] == golden["px"]


@needs_shared
def test_the_image_is_the_goldens():
    assert image().reshape(-1, 3).sum(axis=0).tolist() == goldens()["img_sum"]
    assert_golden(image(), goldens()["color(1.00)"])


@needs_shared
@pytest.mark.parametrize("call", calls(COLORS))
def test_values(call):
    name, argument = parsed(call)
    assert_golden(COLORS[name](image(), argument), goldens()[call])


@needs_shared
@pytest.mark.parametrize("call", calls(MOVES))
def test_places(call):
    name, argument = parsed(call)
    move_image, move_boxes, axis = MOVES[name]
    assert_golden(move_image(image(), argument, *axis), goldens()[call])
    moved = move_boxes(BOXES, (24, 32), argument, *axis)
    np.testing.assert_allclose(moved, goldens()[call]["bbox"], atol=1e-6)


@needs_shared
def test_levels():
    tables = {name: table for name, table in goldens().items() if name.startswith("levels.")}
    assert len(tables) == 16
    for name, table in tables.items():
        for level, arguments in table.items():
            expected = arguments[0] if arguments else 0
            assert argument_of(name.removeprefix("levels."), int(level)) == expected, (name, level)


@needs_shared
def test_a_box_without_height_at_the_edge_is_opened_and_one_without_width_inside_is_not():
    flat = np.array([[1.0, 0.2, 1.0, 0.2]], np.float32)
    (opened,) = boxes.thick_enough(flat)
    np.testing.assert_allclose(opened, goldens()["check_bbox_area"], atol=1e-7)


@needs_shared
def test_every_golden_is_tested():
    tested = {*calls(COLORS), *calls(MOVES), "img_sum", "check_bbox_area"}
    assert {name for name in goldens() if not name.startswith("levels.")} == tested
