"""Whole numbers that people write, of any length: Python reads no thousands of digits."""

_MOST_DIGITS = 18


def is_count(text: str) -> bool:
    """Returns whether a text is a whole number from 0 on, in ASCII digits and below 64 bits."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
