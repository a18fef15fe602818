"""How one record lies in a TFRecord file, and how a file that is not sound is described.

A record is u64 length, u32 masked CRC of those 8 bytes, the payload, u32 masked CRC of the payload;
all little-endian (fact sheet 4.1).
"""

import struct
from pathlib import Path

from stillbox.errors import UserError
from stillbox.records.crc32c import masked_crc32c

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")

# What people hand over by mistake, by its first bytes.
_LOOKALIKES = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x89PNG", "a PNG image"),
    (b"PK\x03\x04", "a zip archive"),
    (b"{", "JSON text: convert it with `stillbox data convert coco`"),
    (b"[", "JSON text: convert it with `stillbox data convert coco`"),
    (b"<", "XML text: convert it with `stillbox data convert voc`"),
    (b"item", "a label map, which belongs into `label_map`"),
)


class RecordError(UserError):
    """A record that cannot be read out of its file; `where` names file, record and byte."""


def frame(payload: bytes) -> bytes:
    """Returns `payload` as it is stored, with its length and both checksums."""
    length = _LENGTH.pack(len(payload))
    return b"".join(
        (
            length,
            _CRC.pack(masked_crc32c(length)),
            payload,
            _CRC.pack(masked_crc32c(payload)),
        )
    )


def is_header(header: bytes) -> bool:
    """Tells whether 12 bytes are the start of a record, by the checksum of the length."""
    return len(header) == HEADER_BYTES and masked_crc32c(header[:8]) == _CRC.unpack(header[8:])[0]


def payload_length(header: bytes) -> int:
    """Returns the length that a record's first 12 bytes announce."""
    return int(_LENGTH.unpack(header[:8])[0])


def payload_is_sound(payload: bytes, footer: bytes) -> bool:
    """Tells whether the payload is what its checksum says."""
    return masked_crc32c(payload) == _CRC.unpack(footer)[0]


def record_place(path: Path, record: int, offset: int) -> str:
    """Returns the words for one record of one file; records are counted from 0."""
    return f"{path}: record {record} (byte {offset})"


def header_fault(header: bytes, record: int) -> str:
    """Says what is wrong with a record's first bytes.

    Args:
        header: up to 12 bytes; fewer where the file ends.
        record: its number; the first one tells what the file really is.
    """
    if record == 0:
        for start, name in _LOOKALIKES:
            if header.startswith(start[:HEADER_BYTES]):
                return f"this is not a TFRecord file but {name}"
    if len(header) < HEADER_BYTES:
        return f"the file is truncated: {len(header)} bytes follow the last whole record"
    return (
        "this is not a TFRecord file: the checksum of the first record's length is wrong"
        if record == 0
        else "the checksum of the record's length is wrong: the file is damaged from here on"
    )


def length_fault(length: int, available: int) -> str:
    """Says that a record is longer than what is left of its file."""
    return f"the file is truncated: the record needs {length} bytes and {available} are left"


PAYLOAD_FAULT = "the checksum of the record's content is wrong: its bytes are damaged"
REPAIR = "copy or convert the file again, or set data.bad_records=drop to go on without it"
