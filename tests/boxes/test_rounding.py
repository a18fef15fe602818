"""Arithmetic with a rounding after every operation, beside numpy's."""

import numpy as np
import pytest

from stillbox.boxes.rounding import product, quotient, scaled_down
from stillbox.boxes.samples import edge_samples
from tests.boxes.compiling import optimised

NUMBERS = np.random.default_rng(0).uniform(-600, 600, 2000).astype(np.float32)


def test_a_quotient_by_a_constant_is_no_product():
    expected = NUMBERS / np.float32(600)
    assert (optimised(lambda numbers: quotient(numbers, 600), NUMBERS) == expected).all()


@pytest.mark.parametrize("size", [192, 600, 41])
def test_boxes_are_multiplied_by_the_reciprocal_of_the_size(size):
    """`scale(boxlist, 1 / height, 1 / width)` of the original's `to_normalized_coordinates`."""
    expected = NUMBERS * (np.float32(1) / np.float32(size))
    assert (expected != NUMBERS / np.float32(size)).any()
    assert (optimised(lambda numbers: scaled_down(numbers, size), NUMBERS) == expected).all()
    assert (optimised(scaled_down, NUMBERS, np.int32(size)) == expected).all()


def test_one_unit_in_the_last_place_decides_whether_a_crop_ends_on_its_map():
    """Executed: the original samples the last row of a proposal from 53.04454 to 192 of 192."""
    box = np.float32([[53.04454, 0, 192, 192]])
    for framed, inside in ((scaled_down(box, 192), True), (quotient(box, 192), False)):
        rows = edge_samples(framed, (12, 12), size=14, outside="zero").rows
        assert bool(rows.weights[0, -1].sum() > 0) == inside


def test_a_product_is_rounded_before_it_is_added():
    expected = NUMBERS * np.float32(1.1) + NUMBERS[::-1]
    merged = lambda one, other: product(one, 1.1) + other  # noqa: E731
    assert (optimised(merged, NUMBERS, NUMBERS[::-1]) == expected).all()


def test_a_product_is_limited_to_what_fits_into_an_integer():
    assert (product(np.float32([-3e38, 3e38]), 1) == np.float32([-(2**29), 2**29])).all()
