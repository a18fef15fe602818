"""What the header of a JPEG file says, read without decoding (ITU-T T.81, annex B)."""

from typing import NamedTuple

_START, _END = b"\xff\xd8", b"\xff\xd9"
# Baseline and extended sequential, Huffman-coded: rows come in order.
_SEQUENTIAL = (0xC0, 0xC1)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN, _RESTARTS, _MORE_IMAGES = 0xDA, 0xDD, 0xE2
# The upsampling of colours reads the rows of colours beside a row.
_ROWS_BESIDE = 8
# Most rows that are decoded together. A decoder may read ahead, but not beyond the end.
_LARGEST_BLOCK = 32


class JpegHeader(NamedTuple):
    """Size of the image, and whether its upper rows can be decoded alone."""

    height: int
    """Rows of pixels, as stored."""
    width: int
    """Columns of pixels, as stored."""
    height_at: int
    """Where the file has the height, two bytes."""
    divisible: bool
    """Whether all rows follow each other in one scan, which ends with the file."""


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """Returns the header of a JPEG file; None for any other or a damaged one."""
    if not data.startswith(_START):
        return None
    place, header, divisible = len(_START), None, data.endswith(_END)
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker, size = data[place + 1], int.from_bytes(data[place + 2 : place + 4])
        content = data[place + 4 : place + 2 + size]
        if marker in _FRAMES:
            header = _read_frame(marker, content, place + 4)
            parts = content[5] if header else 0
        elif marker == _RESTARTS:
            divisible &= not any(content)
        elif marker == _MORE_IMAGES:
            divisible &= not content.startswith(b"MPF\0")
        elif marker == _SCAN:
            if header is None or not content:
                return None
            return header._replace(divisible=header.divisible and divisible and content[0] == parts)
        place += 2 + size
    return None


def _read_frame(marker: int, content: bytes, place: int) -> JpegHeader | None:
    if len(content) < 6 or content[0] != 8:
        return None
    height, width = int.from_bytes(content[1:3]), int.from_bytes(content[3:5])
    # Height 0: it follows behind the first scan.
    return JpegHeader(height, width, place + 1, marker in _SEQUENTIAL) if height and width else None


def upper_rows(data: bytes, header: JpegHeader, rows: int) -> bytes:
    """Returns a file of which a decoder reads the upper rows, and some more, exactly as of `data`.

    The rest of the only scan is there but never read. Without the marker of its end it is not
    reported as superfluous either.
    """
    height = rows + _ROWS_BESIDE
    if not header.divisible or height + _LARGEST_BLOCK >= header.height:
        return data
    at = header.height_at
    return b"".join((data[:at], height.to_bytes(2), data[at + 2 : -len(_END)]))
