"""The frame of a record in a TFRecord file.

u64 length, u32 masked CRC-32C of these 8 bytes, the payload, u32 masked CRC-32C of the payload; all
little-endian. Source: tensorflow.org, "TFRecord and tf.train.Example".
"""

import struct
from pathlib import Path

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.crc32c import masked_crc32c

HEADER_BYTES = 12
FRAME_BYTES = HEADER_BYTES + 4
MAX_RECORD_BYTES = 2**30
"""Greatest size of a record: the largest image file, twice."""

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")

# Files that are given by mistake, by their first bytes.
_LOOKALIKES = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: run `git lfs pull`",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"PK\x03\x04": "a zip archive",
    b"{": "JSON text: convert it with `stillbox data convert coco`",
    b"[": "JSON text: convert it with `stillbox data convert coco`",
    b"<": "XML text: convert it with `stillbox data convert voc`",
    b"item": "a label map, which belongs into `label_map`",
}


class RecordError(UserError):
    """A record that cannot be read out of its file; `where` names file, record and byte."""


def record_error(fault: str, where: str) -> RecordError:
    """Returns the error for a fault of a record."""
    fix = "copy or convert the file again, or set data.bad_records=drop to go on without it"
    return RecordError(fault, where=where, fix=fix)


def record_location(path: Path, record: int, offset: int) -> str:
    """Returns the description of a record in messages; records are counted from 0."""
    return f"{path}: record {record} (byte {offset})"


def frame(payload: bytes) -> bytes:
    """Returns `payload` as it is stored, with its length and both checksums."""
    length = _LENGTH.pack(len(payload))
    checksums = _CRC.pack(masked_crc32c(length)), _CRC.pack(masked_crc32c(payload))
    return b"".join((length, checksums[0], payload, checksums[1]))


def unframe(framed: bytes) -> bytes | None:
    """Returns the payload of a framed record, None if a checksum is wrong."""
    payload, footer = framed[HEADER_BYTES : -_CRC.size], framed[-_CRC.size :]
    sound = len(framed) >= FRAME_BYTES and is_header(framed[:HEADER_BYTES])
    return payload if sound and footer == _CRC.pack(masked_crc32c(payload)) else None


def is_header(header: bytes) -> bool:
    """Tells whether 12 bytes are the start of a record, by the checksum of the length."""
    return len(header) == HEADER_BYTES and header[8:] == _CRC.pack(masked_crc32c(header[:8]))


def payload_length(header: bytes) -> int:
    """Returns the payload's length from the first 12 bytes of a record."""
    return int(_LENGTH.unpack(header[:8])[0])


def header_fault(header: bytes, available: int, *, first: bool) -> str:
    """Returns what is wrong with a record's first bytes, nothing if they are sound.

    The header has 12 bytes, or fewer at the end of the file; `available` bytes follow from its
    start. The first record may reveal a file of another type.
    """
    if not is_header(header):
        for start, name in _LOOKALIKES.items() if first else ():
            if header.startswith(start[:HEADER_BYTES]):
                return f"this is not a TFRecord file but {name}"
        if len(header) < HEADER_BYTES:
            return (
                f"the file is truncated: {count_text(len(header), 'byte')} after the last whole "
                "record"
            )
        if first:
            return "this is not a TFRecord file: the checksum of the first record's length is wrong"
        return "the checksum of the record's length is wrong: the file is damaged from here on"
    length, left = payload_length(header), available - HEADER_BYTES
    if length > MAX_RECORD_BYTES:
        return f"the record claims {length:,} bytes; one has {MAX_RECORD_BYTES:,} at most"
    if length + _CRC.size > left:
        return (
            f"the file is truncated: the record needs {count_text(length, 'byte')} of {left} that "
            "are left"
        )
    return ""
