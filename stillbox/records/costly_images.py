"""Recognises image files that take far longer to decode than their bytes and pixels justify.

The structure of a file alone decides. Costs are of one core of 2023.
"""

import re
from collections.abc import Callable, Iterator

JPEG_START, PNG_START = b"\xff\xd8", b"\x89PNG\r\n\x1a\n"
"""The first bytes of files."""
# The next marker, past stuffed zeros and restarts of entropy-coded data, and past rubbish.
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the segments with the size of a JPEG image."""
JPEG_SCAN, _END = 0xDA, 0xD9
# Every scan visits all blocks of its components, even if it changes none: up to 0.8 ns a pixel.
# Encoders write 10 scans, of 14 components together.
_MOST_SCANNED, _FEW_SCANS = 100, 4
_ANY_SCANNED, _MOST_SCANNED_A_BYTE = 2**29, 1000
# Decoders keep every chunk of text, and search all of them for each: real files have a few dozen.
_MOST_CHUNKS = 1000
# The loop over them is in Python.
_MOST_SEGMENTS = 10_000
# Compressions of bitmaps; Pillow takes 0.4 us for a byte of them.
_RUNS = (1, 2)
_MOST_RUN_BYTES = 2**22


def costly(data: bytes) -> str:
    """Returns why a file must not be decoded; empty if there is no reason."""
    for start, look in _COSTLY_BY_START.items():
        if data.startswith(start):
            return look(data)
    return ""


def _costly_jpeg(data: bytes) -> str:
    """Adds up the pixels of all scans, by component, of the first image of a file."""
    pixels = scans = walked = 0
    for count, (marker, place) in enumerate(jpeg_segments(data)):
        if count >= _MOST_SEGMENTS:
            return f"more than {_MOST_SEGMENTS:,} segments"
        if marker in JPEG_FRAMES:
            height, width = (int.from_bytes(data[place + at : place + at + 2]) for at in (3, 5))
            pixels = max(pixels, height * width)
        elif marker == JPEG_SCAN:
            scans += 1
            walked += pixels * min(data[place + 2] if place + 2 < len(data) else 0, 4)
            most = max(_ANY_SCANNED, _MOST_SCANNED_A_BYTE * len(data))
            if scans > _FEW_SCANS and walked > min(most, max(_MOST_SCANNED * pixels, 2**22)):
                return f"{len(data):,} bytes that hold {scans} scans or more of {pixels:,} pixels"
    return ""


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the marker of each segment up to the end of the image, and the place of its length."""
    place = len(JPEG_START)
    while match := _MARKER.search(data, place):
        place = match.end()
        marker = data[place - 1]
        if marker == _END:
            return
        yield marker, place
        place += max(2, int.from_bytes(data[place : place + 2]))


def _costly_png(data: bytes) -> str:
    place, chunks = len(PNG_START), 0
    while place + 8 <= len(data):
        length, chunk = int.from_bytes(data[place : place + 4]), data[place + 4 : place + 8]
        chunks += chunk != b"IDAT"
        if chunks > _MOST_CHUNKS:
            return f"more than {_MOST_CHUNKS:,} chunks beside those of its pixels"
        # Behind the data is a checksum.
        place += 8 + length + 4
        if chunk == b"IEND":  # no decoder reads what follows
            break
    return ""


def _costly_bitmap(data: bytes) -> str:
    if int.from_bytes(data[30:34], "little") in _RUNS and len(data) > _MOST_RUN_BYTES:
        return f"a bitmap that is compressed by runs and has more than {_MOST_RUN_BYTES:,} bytes"
    return ""


_COSTLY_BY_START: dict[bytes, Callable[[bytes], str]] = {
    JPEG_START: _costly_jpeg,
    PNG_START: _costly_png,
    b"BM": _costly_bitmap,
}
