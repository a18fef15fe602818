"""Bands of rows of an image.

Float32 copies of whole images fit no cache, and the C library returns arrays of that size to the
system, so that each costs page faults. A few rows at a time are several times faster.
"""

from collections.abc import Iterator

_VALUES = 1 << 15


def row_bands(rows: int, columns: int) -> Iterator[slice]:
    """Yields slices that cover all rows of an image, each of some thousand pixels."""
    height = max(_VALUES // (3 * columns), 1)
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))
