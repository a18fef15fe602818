"""Numbers that other people wrote."""

import math

import pytest

from stillbox import numerals

# Python reads the first five of them as numbers, and raises an error for thousands of digits.
NONE = [
    "1_000",
    "\u0663",
    "\uff11",
    "nan",
    "inf",
    "9" * 5000,
    "1e400",
    "",
    " ",
    "1 2",
    "0x10",
    "1,5",
]


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_numeral_is_no_number(text):
    assert math.isnan(numerals.number(text))
    assert numerals.whole(text) is None and numerals.digits(text) is None


def test_numbers_of_texts_and_values():
    assert [numerals.number(text) for text in (" 1.5 ", ".5", "1.", "-2e-3", 7)] == [
        1.5, 0.5, 1.0, -0.002, 7.0,
    ]  # fmt: skip
    assert [numerals.whole(text) for text in (" 12 ", "-3", 3.0, 2**63 - 1)] == [
        12,
        -3,
        3,
        2**63 - 1,
    ]
    assert [numerals.whole(value) for value in (2**63, 3.5, True, None, "3.0")] == [None] * 5
    assert [numerals.count(text) for text in ("0", "-1")] == [0, None]
    assert all(math.isnan(numerals.number(value)) for value in (10**400, math.inf, True, None, []))


def test_literals_of_configs_have_a_base():
    texts = ("0x1f", "-0X10", "0b11", "017", "09", "12", "0x", "0b2", "1_0", "9" * 301)
    assert [numerals.literal(text) for text in texts] == [
        31, -16, 3, 15, 9, 12, None, None, None, None,
    ]  # fmt: skip


def test_a_number_of_json_has_an_end():
    assert numerals.json_whole("9" * 300) == 10**300 - 1
    with pytest.raises(ValueError, match=numerals.too_long("9" * 5000)):
        numerals.json_whole("9" * 5000)
