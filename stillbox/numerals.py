"""Numbers that other people wrote, in files, options, variables and headers.

A numeral is ASCII digits with a sign, a point and an exponent; blanks around it do not count.
Python itself reads more (`1_000`, the digits of all alphabets, `nan`) and less: it raises an error
for thousands of digits.
"""

import re
import sys

_LIMIT = 2**63
_LONGEST = 300
"""Characters of a whole number: Python reads no thousands of digits."""
_DIGITS = re.compile(r"[+-]?[0-9]+")
_LITERAL = re.compile(r"([+-]?)0(?:[xX]([0-9a-fA-F]+)|[bB]([01]+)|([0-7]+))")
_NUMERAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def digits(text: str) -> int | None:
    """Returns the whole number that a text of up to 300 characters spells; else None."""
    text = text.strip()
    return int(text) if _DIGITS.fullmatch(text) and not too_long(text) else None


def literal(text: str) -> int | None:
    """Returns what `digits` does, also of `0x1f`, `0b11` and `017`, which is octal."""
    match = _LITERAL.fullmatch(text)
    if match is None or too_long(text):
        return digits(text)
    sign, hexadecimal, binary, octal = match.groups()
    base = 16 if hexadecimal else 2 if binary else 8
    return int(sign + (hexadecimal or binary or octal), base)


def json_whole(text: str) -> int:
    """Returns a whole number of JSON, as `parse_int` of `json.loads`.

    Raises:
        ValueError: it is too long.
    """
    if problem := too_long(text):
        raise ValueError(problem)
    return int(text)


def too_long(text: str) -> str:
    """Returns what a numeral is that is longer than any number; empty if it is not."""
    return f"a number of {len(text):,} characters" if len(text) > _LONGEST else ""


def whole(value: object) -> int | None:
    """Returns the whole number below 64 bits that a value is, or that a text spells; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    number = digits(value) if isinstance(value, str) else value
    # Infinity and `nan` are no such number.
    return int(number) if number is not None and abs(number) < _LIMIT and number % 1 == 0 else None


def count(value: object) -> int | None:
    """Returns the number from 0 on that `whole` finds, else None."""
    number = whole(value)
    return None if number is None or number < 0 else number


def number(value: object) -> float:
    """Returns the finite number that a value is, or that a text spells; else NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return float("nan")
    if isinstance(value, str):
        text = value.strip()
        value = float(text) if _NUMERAL.fullmatch(text) else float("nan")
    return float(value) if abs(value) <= sys.float_info.max else float("nan")
