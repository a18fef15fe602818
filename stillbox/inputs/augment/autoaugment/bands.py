"""Images a few rows at a time.

Numbers of a whole image in float32 fill no cache, and the C library returns arrays of that size to
the system, so that each is paid for page by page. A few rows are several times as fast.
"""

from collections.abc import Iterator

_VALUES = 1 << 15


def row_bands(rows: int, columns: int) -> Iterator[slice]:
    """Yields slices that make up all rows of an image, each of some thousand pixels."""
    height = max(_VALUES // (3 * columns), 1)
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))
