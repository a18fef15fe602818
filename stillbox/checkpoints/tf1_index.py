"""The index of a TF1 checkpoint (format V2): a sorted table of protocol messages, one a variable.

The table is LevelDB's: data blocks of prefix-compressed keys, an index block that points at them,
and a fixed footer. An index of a detector has a few kilobytes, so it is read at once.
Source: `tensorflow/core/protobuf/tensor_bundle.proto`, `tensorflow/core/framework/types.proto`.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from stillbox.records.crc32c import masked_crc32c
from stillbox.records.wire import integer_of, read_varint, values

MAGIC = 0xDB4775248B80FB57
DTYPES: dict[int, np.dtype] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    4: np.dtype(np.uint8),
    5: np.dtype(np.int16),
    6: np.dtype(np.int8),
    9: np.dtype(np.int64),
    10: np.dtype(np.bool_),
    14: np.dtype(jnp.bfloat16),
    17: np.dtype(np.uint16),
    19: np.dtype(np.float16),
    22: np.dtype(np.uint32),
    23: np.dtype(np.uint64),
}
STRING = 7
"""The number of the type of texts."""
_FOOTER_BYTES = 48
# One byte for the compression, four for the checksum.
_TRAILER_BYTES = 5
_COMPRESSIONS = {0: "none", 1: "snappy"}
# Keys share prefixes, so that a hostile file of a megabyte may hold gigabytes of them. Those of
# real checkpoints have about ten times the bytes of the file.
_MOST_KEY_BYTES = 100
_MOST_AXES = 32


class BundleEntry(NamedTuple):
    """Type and place of one variable (`BundleEntryProto`)."""

    dtype_number: int
    """TensorFlow's number of the type."""
    shape: tuple[int, ...]
    shard: int
    """Number of the data file."""
    offset: int
    """First byte in that file."""
    size: int
    """In bytes."""
    checksum: int
    """Masked crc32c of the bytes."""
    sliced: bool
    """Whether the variable is partitioned; its slices have entries of their own."""

    @property
    def dtype(self) -> np.dtype | None:
        """The numpy type, or None for strings, resources and the like."""
        return DTYPES.get(self.dtype_number)


def is_table(data: bytes) -> bool:
    """Whether bytes end as a table does."""
    return len(data) >= _FOOTER_BYTES and struct.unpack("<Q", data[-8:])[0] == MAGIC


def read_index(data: bytes) -> tuple[int, dict[str, BundleEntry]]:
    """Reads an index.

    Returns:
        The number of data files, and the entries by name in the order of the names.

    Raises:
        ValueError: the bytes are no index, are damaged or compressed, or numbers are big-endian.
    """
    try:
        table = read_table(data)
        # The header (`BundleHeaderProto`) has the empty key, which sorts before every name.
        header = dict(values(table.pop(b"", b"")))
        entries = {key.decode(): _parse_entry(value) for key, value in table.items()}
    except (IndexError, TypeError, struct.error) as error:
        raise ValueError(f"a message is damaged ({error})") from error
    if header.get(2, 0) != 0:
        raise ValueError("its numbers are big-endian, which is not supported")
    return integer_of(header, 1), entries


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Returns all entries of a table in the order of their keys.

    Raises:
        ValueError: the bytes are not a table, are damaged, or are compressed.
        IndexError: a number in it is cut off.
    """
    if not is_table(data):
        raise ValueError("the file does not end like the index of a checkpoint")
    footer = data[-_FOOTER_BYTES:]
    # Two handles: of the metaindex block, which is empty, and of the index block.
    _, _, position = _read_handle(footer, 0)
    entries: dict[bytes, bytes] = {}
    left, key_bytes = len(data), _MOST_KEY_BYTES * len(data)
    for _, handle in _read_block(data, footer, position):
        # A block that several handles point at would be read as often.
        left -= _read_handle(handle, 0)[1]
        if left < 0:
            raise ValueError("its blocks overlap")
        for key, value in _read_block(data, handle, 0):
            key_bytes -= len(key)
            if key_bytes < 0:
                raise ValueError("its names are too long")
            entries[key] = value
    return entries


def _parse_entry(data: bytes) -> BundleEntry:
    message = dict(values(data))
    shape = message.get(2, b"")
    # Field 2 of a shape is an axis, whose field 1 is its length.
    axes = list(values(shape)) if isinstance(shape, bytes) else []
    if len(axes) > _MOST_AXES:
        raise ValueError(f"a variable has {len(axes)} axes")
    return BundleEntry(
        dtype_number=integer_of(message, 1),
        shape=tuple(
            integer_of(dict(values(axis)), 1)
            for number, axis in axes
            if number == 2 and isinstance(axis, bytes)
        ),
        shard=integer_of(message, 3),
        offset=integer_of(message, 4),
        size=integer_of(message, 5),
        checksum=integer_of(message, 6),
        sliced=7 in message,
    )


def _read_handle(data: bytes, position: int) -> tuple[int, int, int]:
    offset, position = read_varint(data, position)
    size, position = read_varint(data, position)
    return offset, size, position


def _read_block(data: bytes, handles: bytes, position: int) -> Iterator[tuple[bytes, bytes]]:
    """Verifies the block that a handle at `position` points at, and yields its entries."""
    offset, size, _ = _read_handle(handles, position)
    block = data[offset : offset + size]
    trailer = data[offset + size : offset + size + _TRAILER_BYTES]
    if len(trailer) != _TRAILER_BYTES:
        raise ValueError("a block reaches beyond the end of the file")
    compression, checksum = struct.unpack("<BI", trailer)
    if masked_crc32c(block + trailer[:1]) != checksum:
        raise ValueError("a block's checksum is wrong")
    if compression:
        # TensorFlow never compresses these files.
        name = _COMPRESSIONS.get(compression, str(compression))
        raise ValueError(f"a block is compressed ({name}), which is not supported")
    (restarts,) = struct.unpack("<I", block[-4:])
    # Restart points serve binary search only.
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
