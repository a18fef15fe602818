"""Arithmetic with a rounding after every operation, beside numpy's."""

import numpy as np

from stillbox.boxes.rounding import product, quotient
from tests.boxes.compiling import optimised

NUMBERS = np.random.default_rng(0).uniform(-600, 600, 2000).astype(np.float32)


def test_a_quotient_by_a_constant_is_no_product():
    expected = NUMBERS / np.float32(600)
    assert (optimised(lambda numbers: quotient(numbers, 600), NUMBERS) == expected).all()


def test_a_product_is_rounded_before_it_is_added():
    expected = NUMBERS * np.float32(1.1) + NUMBERS[::-1]
    merged = lambda one, other: product(one, 1.1) + other  # noqa: E731
    assert (optimised(merged, NUMBERS, NUMBERS[::-1]) == expected).all()


def test_a_product_is_limited_to_what_fits_into_an_integer():
    assert (product(np.float32([-3e38, 3e38]), 1) == np.float32([-(2**29), 2**29])).all()
