"""Reads the sorted table in which a TF1 checkpoint keeps its index.

The format is LevelDB's table: data blocks of prefix-compressed keys, an index block that points at
them, and a fixed footer. An index of a detector has a few kilobytes, so the table is read whole.
"""

import struct
from collections.abc import Iterator

from stillbox.records.crc32c import masked_crc32c

MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
# One byte for the compression, four for the checksum.
_TRAILER_BYTES = 5
_COMPRESSIONS = {0: "none", 1: "snappy"}


def is_table(data: bytes) -> bool:
    """Whether bytes end as a table does."""
    return len(data) >= _FOOTER_BYTES and struct.unpack("<Q", data[-8:])[0] == MAGIC


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Returns all entries of a table in the order of their keys.

    Raises:
        ValueError: the bytes are not a table, are damaged, or are compressed.
    """
    if not is_table(data):
        raise ValueError("the file does not end like the index of a checkpoint")
    footer = data[-_FOOTER_BYTES:]
    # Two handles: of the metaindex block, which such files leave empty, and of the index block.
    _, _, position = _read_handle(footer, 0)
    offset, size, _ = _read_handle(footer, position)
    entries: dict[bytes, bytes] = {}
    for _, handle in _read_entries(_read_block(data, offset, size)):
        offset, size, _ = _read_handle(handle, 0)
        entries.update(_read_entries(_read_block(data, offset, size)))
    return entries


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads a little-endian base-128 number.

    Returns:
        The number and the position behind it.

    Raises:
        ValueError: the bytes end, or ten bytes pass, before the number does.
    """
    value = 0
    for index, byte in enumerate(data[position : position + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("a number does not end")


def _read_handle(data: bytes, position: int) -> tuple[int, int, int]:
    offset, position = read_varint(data, position)
    size, position = read_varint(data, position)
    return offset, size, position


def _read_block(data: bytes, offset: int, size: int) -> bytes:
    block = data[offset : offset + size]
    trailer = data[offset + size : offset + size + _TRAILER_BYTES]
    if len(trailer) != _TRAILER_BYTES:
        raise ValueError("a block reaches beyond the end of the file")
    compression, checksum = struct.unpack("<BI", trailer)
    if masked_crc32c(block + trailer[:1]) != checksum:
        raise ValueError("a block's checksum is wrong")
    if compression:
        # TensorFlow never switched compression on for these files (it stayed "for now" off).
        name = _COMPRESSIONS.get(compression, str(compression))
        raise ValueError(f"a block is compressed ({name}), which is not supported")
    return block


def _read_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (restarts,) = struct.unpack("<I", block[-4:])
    # Restart points serve binary search; reading from front to back needs only to skip them.
    end = len(block) - 4 * (restarts + 1)
    position, key = 0, b""
    while position < end:
        shared, position = read_varint(block, position)
        unshared, position = read_varint(block, position)
        length, position = read_varint(block, position)
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        yield key, block[position : position + length]
        position += length
