import re
from collections import Counter
from typing import get_args, get_type_hints

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.experiment.rules.augmentations import _POLICIES_WITH_CONTRAST
from stillbox.inputs.augment.autoaugment import OPERATIONS, POLICIES, colors, operations, warps
from stillbox.inputs.augment.autoaugment.operations import argument_of, take_step
from stillbox.inputs.augment.autoaugment.policies import Step
from tests.inputs.augment.samples import augmented, many, rng, sample
from tests.shared import SHARED, needs_shared

SHORT = {
    "TX": "TranslateX",
    "TY": "TranslateY",
    "_B": "_BBox",
    "_O": "_Only_BBoxes",
}


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
    assert set(operations.CONTRASTS) == set(choices)


def test_the_rules_know_the_policies_that_change_contrast():
    found = [
        name
        for name, rows in POLICIES.items()
        if any(step.name == "Contrast" and step.probability for row in rows for step in row)
    ]
    assert tuple(found) == _POLICIES_WITH_CONTRAST


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
        colors.equalize(warps.translate(before.image, pixels, axis=1)) for pixels in (100, -100)
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
    assert np.array_equal(original, colors.contrast(before.image, 1.9))
    assert np.array_equal(mean, colors.contrast_about_mean(before.image, 1.9))
    assert not np.array_equal(original, mean)
