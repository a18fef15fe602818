"""Sums, pixels and boxes that the original's operations gave .

The image of the goldens is not written down with them. Its size follows from the
autoaugment_images, which are multiples of 1/24 and 1/32, and its formula from pixels that shifts
bring to the corner: the first pixel of `translate_x(10)` comes from column 10, [30, 90, 90], of
`translate_y(10)` from row 10, [70, 150, 90]. Sums of all three channels and the other two
pixels confirm it. The boxes are known up to what is cut off: others in the same pixels would do
as well.
"""

import json
import re
from collections import Counter
from functools import cache
from typing import get_args, get_type_hints

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.experiment.rules.warnings import _POLICIES_WITH_CONTRAST
from stillbox.inputs.augment import autoaugment, autoaugment_images
from stillbox.inputs.augment.autoaugment import OPERATIONS, POLICIES, Step, argument_of, take_step
from tests.inputs.augment.samples import augmented, many, rng, sample
from tests.small import SHARED, needs_shared

SHORT = {"TX": "TranslateX", "TY": "TranslateY", "_B": "_BBox", "_O": "_Only_BBoxes"}


def spelt_out(name):
    start, ending = re.fullmatch(r"(.+?)(_B|_O)?", name).groups()
    return SHORT.get(start, start) + SHORT.get(ending, "")


@needs_shared
@pytest.mark.parametrize("policy", ["v0", "v1", "v2", "v3", "test"])
def test_the_policies_are_those_of_the_original(policy):
    listing = (SHARED / "spec/tpu_detection.md").read_text()
    (line,) = re.findall(rf"^\* \*\*{policy}\*\*[^:]*: (.*)$", listing, re.MULTILINE)
    rows = tuple(
        tuple(
            Step(spelt_out(name), float(probability), int(level))
            for name, probability, level in re.findall(r"(\w+)\(([\d.]+),(\d+)\)", row)
        )
        for row in line.split(" | ")
    )
    # v1 is written as v0 and more.
    assert POLICIES[policy] == (POLICIES["v0"] if policy == "v1" else ()) + rows


def test_the_policies_have_the_originals_sizes_and_nothing_unknown():
    sizes = {name: len(rows) for name, rows in POLICIES.items()}
    assert sizes == {"v0": 5, "v1": 20, "v2": 15, "v3": 15, "test": 1}
    assert set(POLICIES) == set(get_args(get_type_hints(schema.AutoAugment)["policy"]))
    for step in (step for rows in POLICIES.values() for row in rows for step in row):
        assert step.name in OPERATIONS
        assert 0 <= step.probability <= 1
        assert 0 <= step.level <= 10


def test_there_are_25_operations():
    assert len(set(OPERATIONS)) == len(OPERATIONS) == 25


def test_every_choice_of_contrast_is_there():
    choices = get_args(get_type_hints(schema.AutoAugment)["contrast"])
    assert set(autoaugment.CONTRASTS) == set(choices)


def test_the_rules_know_the_policies_that_change_contrast():
    policies = [
        name
        for name, rows in POLICIES.items()
        if any(step.name == "Contrast" and step.probability for row in rows for step in row)
    ]
    assert tuple(policies) == _POLICIES_WITH_CONTRAST


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # By hand for levels 1, 5 and 10, those that the goldens have no table of among them.
        ("Solarize", [25, 128, 256]),  # int(25.6 L)
        ("Cutout", [10, 50, 100]),
        ("Cutout_Only_BBoxes", [5, 25, 50]),
        ("Contrast", [0.28, 1.0, 1.9]),  # .1 + .18 L
        ("Posterize", [0, 2, 4]),  # int(.4 L)
        ("SolarizeAdd", [11, 55, 110]),
        ("BBox_Cutout", [0.075, 0.375, 0.75]),
        ("Rotate_BBox", [3, 15, 30]),
        ("TranslateY_BBox", [25, 125, 250]),
        ("TranslateY_Only_BBoxes", [12, 60, 120]),
        ("ShearY_Only_BBoxes", [0.03, 0.15, 0.3]),
        ("AutoContrast", [0, 0, 0]),
        ("Flip_Only_BBoxes", [0, 0, 0]),
    ],
)
def test_levels_by_hand(name, expected):
    np.testing.assert_allclose([argument_of(name, level) for level in (1, 5, 10)], expected)


def test_the_policy_for_tests_shifts_by_100_pixels_and_equalizes():
    before = sample(size=(30, 240))
    either = [
        autoaugment_images.equalize(autoaugment_images.translate(before.image, pixels, axis=1))
        for pixels in (100, -100)
    ]
    seen = Counter()
    for after in many(schema.AutoAugment(policy="test"), before, 100):
        matches = [np.array_equal(after.image, image) for image in either]
        assert any(matches)
        seen[matches[0]] += 1
    # Each sign as often: 50 of 100, deviation 5.
    assert 30 < seen[True] < 70


def test_rows_are_drawn_evenly(monkeypatch):
    rows = tuple((Step(name, 1.0, 0),) for name in "abcd")
    monkeypatch.setitem(POLICIES, "v0", rows)
    taken = []
    monkeypatch.setattr(
        "stillbox.inputs.augment.autoaugment.take_step",
        lambda step, sample, rng, contrast: taken.append(step.name) or sample,
    )
    many(schema.AutoAugment(), sample(), 800)
    # 200 each, deviation sqrt(800 * .25 * .75) = 12.
    assert all(150 < count < 250 for count in Counter(taken).values())
    assert len(set(taken)) == 4


@pytest.mark.parametrize(
    ("probability", "least", "most"), [(0, 0, 0), (1, 300, 300), (0.2, 35, 85)]
)
def test_a_step_is_taken_with_its_probability(probability, least, most):
    # .2: 60 of 300, deviation 7.
    before = sample()
    step = Step("Solarize", probability, 0)
    taken = sum(take_step(step, before, rng(number)) is not before for number in range(300))
    assert least <= taken <= most


def test_values_beyond_bytes_are_clipped_and_cut():
    before = sample(dtype=np.float32)
    before.image[:] = [-7.5, 99.9, 300.0]
    after = augmented(schema.AutoAugment(policy="v2"), before, 2)
    assert after.image.dtype == np.uint8
    untouched = [
        after.image
        for after in many(schema.AutoAugment(policy="v3"), before, 60)
        if (after.image == [0, 99, 255]).all()
    ]
    assert untouched


def test_contrast_about_the_mean_differs_from_the_originals():
    before = sample(size=(40, 80))
    step = Step("Contrast", 1.0, 10)
    original, mean = (
        take_step(step, before, rng(), contrast).image for contrast in ("original", "mean")
    )
    assert np.array_equal(original, autoaugment_images.contrast(before.image, 1.9))
    assert np.array_equal(mean, autoaugment_images.contrast_about_mean(before.image, 1.9))
    assert not np.array_equal(original, mean)


BOXES = np.array([[0.1, 0.2, 0.5, 0.7], [0, 0, 1, 1], [0.8, 0.9, 0.95, 0.99]], np.float32)
PIXELS = (0, 0), (5, 7), (20, 30)

COLORS = {
    "color": autoaugment_images.color,
    "brightness": autoaugment_images.brightness,
    "sharpness": autoaugment_images.sharpness,
    "contrast": autoaugment_images.contrast,
    "posterize": lambda image, bits: autoaugment_images.posterize(image, int(bits)),
    "solarize": lambda image, threshold: autoaugment_images.solarize(image, int(threshold)),
    "solarize_add": lambda image, addition: autoaugment_images.solarize_add(image, int(addition)),
    "autocontrast": lambda image, _: autoaugment_images.auto_contrast(image),
    "equalize": lambda image, _: autoaugment_images.equalize(image),
}
MOVES = {
    "rotate_bbox": (autoaugment_images.rotate, autoaugment_images.rotate_boxes, ()),
    "translate_x": (autoaugment_images.translate, autoaugment_images.translate_boxes, (1,)),
    "translate_y": (autoaugment_images.translate, autoaugment_images.translate_boxes, (0,)),
    "shear_x": (autoaugment_images.shear, autoaugment_images.shear_boxes, (1,)),
    "shear_y": (autoaugment_images.shear, autoaugment_images.shear_boxes, (0,)),
}


@cache
def goldens():
    return json.loads((SHARED / "goldens/tpu_detection/autoaugment.json").read_text())


def parsed(call):
    name, argument = re.fullmatch(r"(\w+?)(?:\((.*)\))?", call).groups()
    return name, float(argument or 0)


def calls(table):
    """Yields the goldens of one table; without the shared folder there are none."""
    recorded = goldens() if SHARED.is_dir() else {}
    return [call for call in recorded if "." not in call.split("(")[0] and parsed(call)[0] in table]


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
    (opened,) = autoaugment_images.thick_enough(flat)
    np.testing.assert_allclose(opened, goldens()["check_bbox_area"], atol=1e-7)


@needs_shared
def test_every_golden_is_tested():
    tested = {*calls(COLORS), *calls(MOVES), "img_sum", "check_bbox_area"}
    assert {name for name in goldens() if not name.startswith("levels.")} == tested
