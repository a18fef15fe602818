"""What the index of a TF1 checkpoint says about one variable: two small protocol messages."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from stillbox.checkpoints.tf1_table import read_varint

# tensorflow/core/framework/types.proto
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
_LITTLE_ENDIAN = 0


@dataclass(frozen=True)
class BundleEntry:
    """Where the bytes of one variable lie (`BundleEntryProto`)."""

    dtype_number: int
    """TensorFlow's number of the type."""
    shape: tuple[int, ...]
    """Length of every axis."""
    shard: int
    """Which data file."""
    offset: int
    """First byte in that file."""
    size: int
    """Number of bytes."""
    checksum: int
    """Masked crc32c of the bytes."""
    sliced: bool
    """A partitioned variable: this entry is only the heading of several slices."""

    @property
    def dtype(self) -> np.dtype | None:
        """The numpy type, or None for strings, resources and the like."""
        return DTYPES.get(self.dtype_number)


def parse_header(data: bytes) -> int:
    """Reads a `BundleHeaderProto`.

    Returns:
        The number of data files.

    Raises:
        ValueError: the message is damaged, or the tensors are big-endian.
    """
    fields: dict[int, int | bytes] = dict(_fields(data))
    if fields.get(2, _LITTLE_ENDIAN) != _LITTLE_ENDIAN:
        raise ValueError("its numbers are big-endian, which is not supported")
    return _integer(fields, 1)


def parse_entry(data: bytes) -> BundleEntry:
    """Reads a `BundleEntryProto`.

    Raises:
        ValueError: the message is damaged.
    """
    fields = dict(_fields(data))
    shape = fields.get(2, b"")
    return BundleEntry(
        dtype_number=_integer(fields, 1),
        shape=_parse_shape(shape) if isinstance(shape, bytes) else (),
        shard=_integer(fields, 3),
        offset=_integer(fields, 4),
        size=_integer(fields, 5),
        checksum=_integer(fields, 6),
        sliced=7 in fields,
    )


def _parse_shape(data: bytes) -> tuple[int, ...]:
    # An axis of length 0 is written as an empty message.
    return tuple(
        _integer(dict(_fields(axis)), 1)
        for number, axis in _fields(data)
        if number == 2 and isinstance(axis, bytes)
    )


def _integer(fields: dict[int, int | bytes], number: int) -> int:
    value = fields.get(number, 0)
    if isinstance(value, bytes):
        raise ValueError(f"field {number} should be a number")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Walks over the fields of a protocol message: number and value."""
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, position = read_varint(data, position)
            yield number, value
            continue
        if wire_type == 2:
            size, position = read_varint(data, position)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"a field has the unknown wire type {wire_type}")
        raw = data[position : position + size]
        if len(raw) != size:
            raise ValueError("a message is cut off")
        position += size
        yield number, raw if wire_type == 2 else struct.unpack("<Q" if size == 8 else "<I", raw)[0]
