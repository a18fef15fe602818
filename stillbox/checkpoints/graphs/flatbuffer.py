"""Reads tables of flatbuffers, with every offset compared with the size of the file.

Source: flatbuffers.dev, "Internals".
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike

_SIZES = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8}

# Names of tensors that were merged are joined.
_MOST_TEXT_BYTES = 1000


class FlatBufferError(ValueError):
    """An offset leads out of the file."""


class Table(NamedTuple):
    """A table at a place of a file."""

    data: bytes
    at: int

    @classmethod
    def root(cls, data: bytes) -> Self:
        """Returns the table that a file begins with."""
        return cls(data, _number(data, 0, "I"))

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """Returns a number; `kind` is its letter in `struct`."""
        place = self._place(field)
        return default if place is None else _number(self.data, place, kind)

    def table(self, field: int) -> Self | None:
        """Returns a table inside this one, if it is there."""
        place = self._place(field)
        return None if place is None else type(self)(self.data, _follow(self.data, place))

    def tables(self, field: int, most: int) -> Iterator[Self]:
        """Yields the tables of a vector.

        Raises:
            FlatBufferError: there are more than `most`.
        """
        start, count = self._vector(field, 4)
        if count > most:
            raise FlatBufferError(f"a list has {count:,} entries")
        for place in range(start, start + 4 * count, 4):
            yield type(self)(self.data, _follow(self.data, place))

    def numbers(self, field: int, dtype: DTypeLike) -> np.ndarray:
        """Returns a vector of numbers, empty if it is not there."""
        size = np.dtype(dtype).itemsize
        start, count = self._vector(field, size)
        return np.frombuffer(self.data, dtype, count, start) if count else np.zeros(0, dtype)

    def place(self, field: int) -> tuple[int, int]:
        """Returns start and end of a vector of bytes, both 0 if it is not there."""
        start, count = self._vector(field, 1)
        return start, start + count

    def text(self, field: int) -> str:
        """Returns a text of at most a thousand bytes, empty if it is not there."""
        start, end = self.place(field)
        return self.data[start : min(end, start + _MOST_TEXT_BYTES)].decode(errors="replace")

    def _place(self, field: int) -> int | None:
        """Returns where a field's value or offset is."""
        fields = self.at - _number(self.data, self.at, "i")
        size = _number(self.data, fields, "H")
        entry = 4 + 2 * field
        offset = _number(self.data, fields + entry, "H") if entry + 2 <= size else 0
        return self.at + offset if offset else None

    def _vector(self, field: int, size: int) -> tuple[int, int]:
        """Returns where the values of a vector begin, and how many they are."""
        place = self._place(field)
        if place is None:
            return 0, 0
        at = _follow(self.data, place)
        count = _number(self.data, at, "I")
        if at + 4 + count * size > len(self.data):
            raise FlatBufferError(f"a list at byte {at:,} reaches past the end")
        return at + 4, count


def _number(data: bytes, at: int, kind: str) -> int:
    if not 0 <= at <= len(data) - _SIZES[kind]:
        raise FlatBufferError(f"an offset leads to byte {at:,} of {len(data):,}")
    value: int = struct.unpack_from(f"<{kind}", data, at)[0]
    return value


def _follow(data: bytes, at: int) -> int:
    return at + _number(data, at, "I")
