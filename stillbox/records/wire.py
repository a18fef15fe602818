"""The protobuf wire format, and `tf.Example` in it.

`Example { Features features = 1 }`, `Features { map<string, Feature> feature = 1 }`, `Feature` one
of `{ BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3 }`, each list
`{ repeated ... value = 1 }` with packed or unpacked numbers.
Source: protobuf.dev, "Encoding"; tensorflow/core/example/{example,feature}.proto.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stillbox.records.problems import BadRecordError

Feature = Sequence[bytes] | NDArray[np.float32] | NDArray[np.int64]
"""A list of byte strings, of float32 or of int64. A feature without any value is an empty list."""

VARINT, LENGTH = 0, 2
"""Wire types: an integer, and bytes after their length."""

_FIXED64, _FIXED32 = 1, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


def parse_features(data: bytes) -> dict[str, Feature]:
    """Reads a serialised `tf.Example`. Unknown fields are skipped.

    Raises:
        BadRecordError: the bytes are not a `tf.Example`.
    """
    features: dict[str, Feature] = {}
    try:
        for number, kind, start, end in fields(data, 0, len(data)):
            if number == 1 and kind == LENGTH:
                for inner, inner_kind, first, last in fields(data, start, end):
                    if inner == 1 and inner_kind == LENGTH:
                        key, feature = _entry(data, first, last)
                        features[key] = feature
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise BadRecordError("not a tf.Example", str(error)) from error
    return features


def serialize_features(features: Mapping[str, Feature]) -> bytes:
    """Writes a `tf.Example`, keys sorted, so that equal features give equal bytes."""
    entries = []
    for key in sorted(features):
        entry = bytes_field(1, key.encode()) + bytes_field(2, _feature_bytes(features[key]))
        entries.append(bytes_field(1, entry))
    return bytes_field(1, b"".join(entries))


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the varint at byte `at`, and the position of its end.

    Raises:
        IndexError: the data or the ten bytes of a varint end before it does.
    """
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    result, shift = byte & 0x7F, 7
    while byte >= 0x80:
        at += 1
        byte = data[at]
        result |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise IndexError("a number has more than ten bytes")
    return result & 0xFFFFFFFFFFFFFFFF, at + 1


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields (field number, wire type, start, end) of every field of a message.

    The value of every field, a varint too, is `data[start:end]`.

    Raises:
        IndexError: a field reaches past the end.
    """
    while at < end:
        tag, at = read_varint(data, at)
        kind = tag & 7
        start = at
        if kind == LENGTH:
            length, start = read_varint(data, at)
            at = start + length
        elif kind == VARINT:
            _, at = read_varint(data, at)
        elif kind == _FIXED32:
            at += 4
        elif kind == _FIXED64:
            at += 8
        else:
            raise IndexError(f"wire type {kind} at byte {start}")
        if at > end:
            raise IndexError(f"a field at byte {start} reaches past its message")
        yield tag >> 3, kind, start, at


def values(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field of a message; a float is the integer of its bits.

    Raises:
        IndexError: as `fields`.
    """
    for number, kind, start, end in fields(data, 0, len(data)):
        content = data[start:end]
        if kind == VARINT:
            yield number, read_varint(data, start)[0]
        else:
            yield number, content if kind == LENGTH else int.from_bytes(content, "little")


def integer_of(message: Mapping[int, int | bytes], number: int) -> int:
    """Returns a field that is a number; fields that are 0 are not written.

    Raises:
        ValueError: it is not a number.
    """
    value = message.get(number, 0)
    if isinstance(value, bytes):
        raise ValueError(f"field {number} should be a number")
    return value


def bytes_of(message: Mapping[int, int | bytes], number: int) -> bytes:
    """Returns a field that is a text or a message, empty if it is not written.

    Raises:
        ValueError: it is a number.
    """
    value = message.get(number, b"")
    if isinstance(value, int):
        raise ValueError(f"field {number} should be a text or a message")
    return value


def _entry(data: bytes, start: int, end: int) -> tuple[str, Feature]:
    key, feature = "", _NO_VALUES
    for number, kind, first, last in fields(data, start, end):
        if kind != LENGTH:
            continue
        if number == 1:
            key = data[first:last].decode()
        elif number == 2:
            feature = _feature(data, first, last)
    return key, feature


_NO_VALUES: Feature = ()


def _feature(data: bytes, start: int, end: int) -> Feature:
    feature = _NO_VALUES
    for number, kind, first, last in fields(data, start, end):
        if kind != LENGTH:
            continue
        if number == _BYTES_LIST:
            feature = [data[a:b] for n, k, a, b in fields(data, first, last) if (n, k) == (1, 2)]
        elif number == _FLOAT_LIST:
            feature = _floats(data, first, last)
        elif number == _INT64_LIST:
            feature = _integers(data, first, last)
    return feature


def _floats(data: bytes, start: int, end: int) -> NDArray[np.float32]:
    # Packed and single values are both runs of 4-byte floats; a list may mix them.
    runs = [
        np.frombuffer(data, "<f4", (last - first) // 4, first)
        for number, kind, first, last in fields(data, start, end)
        if number == 1 and kind in (LENGTH, _FIXED32)
    ]
    return np.concatenate(runs).astype(np.float32) if runs else np.zeros(0, np.float32)


def _integers(data: bytes, start: int, end: int) -> NDArray[np.int64]:
    values: list[int] = []
    for number, kind, first, last in fields(data, start, end):
        if number != 1 or kind not in (LENGTH, VARINT):
            continue
        run = data[first:last]
        if run.isascii():  # every number below 128 is one byte
            values.extend(run)
            continue
        while first < last:
            value, first = read_varint(data, first)
            values.append(value)
    return np.array(values, np.uint64).astype(np.int64)  # negative numbers are two's complement


def encode_varint(value: int) -> bytes:
    """Returns a number below 2^64 in the bytes of a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_field(number: int, value: int) -> bytes:
    """Returns a field that is an integer; 0, the default of proto3, is left out."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value) if value else b""


def bytes_field(number: int, content: bytes) -> bytes:
    """Returns a field that is a text, bytes or a message."""
    return encode_varint(number << 3 | LENGTH) + encode_varint(len(content)) + content


def _feature_bytes(feature: Feature) -> bytes:
    if not isinstance(feature, np.ndarray):
        return bytes_field(_BYTES_LIST, b"".join(bytes_field(1, value) for value in feature))
    if feature.dtype == np.float32:
        packed = bytes_field(1, feature.astype("<f4").tobytes()) if feature.size else b""
        return bytes_field(_FLOAT_LIST, packed)
    numbers = b"".join(encode_varint(int(v) & 0xFFFFFFFFFFFFFFFF) for v in feature)
    return bytes_field(_INT64_LIST, bytes_field(1, numbers) if numbers else b"")
