"""Reads and writes TF1 checkpoints (format V2) without TensorFlow.

One data file, `.data-00000-of-00001`, holds the bytes of all variables; the `.index`, a table
sorted by name, says where each is. The table is LevelDB's: data blocks of prefix-compressed keys,
an index block that points at them, and a fixed footer. The index of a detector has a few
kilobytes, so it is read at once. TF2's checkpoints and the variables of a SavedModel are files of
the same form.

Both files are renamed to their final names after the disk has them, the index last: an index
means a complete checkpoint. Source: `tensorflow/core/protobuf/tensor_bundle.proto`,
`tensorflow/core/framework/types.proto`.
"""

import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from itertools import count, takewhile
from operator import eq
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from stillbox.checkpoints.array_files import LazyArrays
from stillbox.checkpoints.files import (
    MAX_WEIGHTS_BYTES,
    refuse_other_content,
    sync_folder,
    unfinished_files,
    write_durably,
)
from stillbox.errors import UserError
from stillbox.records.files import create_file, link_or_copy
from stillbox.records.tfrecord import masked_crc32c
from stillbox.records.wire import (
    bytes_field,
    encode_varint,
    integer_of,
    read_varint,
    values,
    varint_field,
)
from stillbox.untrusted import open_untrusted, read_untrusted

MAGIC = 0xDB4775248B80FB57
_TYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64",
    10: "bool", 14: "bfloat16", 17: "uint16", 19: "float16", 22: "uint32", 23: "uint64",
}  # fmt: skip
DTYPES: dict[int, np.dtype] = {number: jnp.dtype(name) for number, name in _TYPES.items()}
STRING = 7
"""The number of the type of texts."""
_FOOTER_BYTES = 48
# One byte for the compression, four for the checksum.
_TRAILER_BYTES = 5
_COMPRESSIONS = {0: "none", 1: "snappy"}
# Keys share prefixes, so that a hostile file of a megabyte may hold gigabytes of them. The keys of
# a real checkpoint have about ten times the bytes of the file.
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
    """Number of bytes."""
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
    """Returns the number of data files, and the entries by name in the order of the names.

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
    # Field 2 of a shape is an axis; field 1 of an axis is its length.
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


# A variable takes about a hundred bytes of it.
_MOST_INDEX_BYTES = 2**24


class Tf1Checkpoint(LazyArrays[BundleEntry]):
    """The variables of a checkpoint such as `model.ckpt-1000`, read and verified on access.

    Raises:
        UserError: there is no index, or it is damaged.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        index = Path(f"{prefix}.index")
        if not index.is_file():
            raise UserError("this checkpoint has no index", where=str(index))
        refuse_other_content(index)
        try:
            content = read_untrusted(index, most=_MOST_INDEX_BYTES)
            self._shards, entries = read_index(content)
        except ValueError as error:
            problem = f"the index cannot be read: {error}"
            raise UserError(problem, where=str(index), fix="copy the file again") from error
        super().__init__(entries)

    def read_text(self, name: str) -> bytes:
        """Returns a variable that is one text.

        Its checksum covers the length as four bytes, the checksum of these, which follows the
        length in the file, and the text.

        Raises:
            UserError: it is missing, damaged, or no text.
        """
        entry = self.entries[name]
        if entry.dtype_number != STRING or entry.shape:
            raise UserError(f"the variable {name!r} is no text", where=self.prefix)
        path, data = self._read_bytes(name, entry)
        try:
            length, start = read_varint(data, 0)
            covered = struct.pack("<I", length) + data[start:]
        except (IndexError, struct.error):
            length, start, covered = 0, 0, b""
        if start + 4 + length != len(data) or masked_crc32c(covered) != entry.checksum:
            raise _damaged(name, path)
        return data[start + 4 :]

    def _read(self, name: str, entry: BundleEntry) -> np.ndarray:
        if entry.dtype is None or entry.sliced:
            kind = "is partitioned" if entry.sliced else f"has type number {entry.dtype_number}"
            problem = f"the variable {name!r} {kind}, which is not supported"
            raise UserError(problem, where=self.prefix)
        path, data = self._read_bytes(name, entry, math.prod(entry.shape) * entry.dtype.itemsize)
        if masked_crc32c(data) != entry.checksum:
            raise _damaged(name, path)
        try:
            return np.frombuffer(data, entry.dtype).reshape(entry.shape)
        except (ValueError, OverflowError) as error:  # no value, and axes of any length
            problem = f"the variable {name!r} has an impossible shape"
            raise UserError(problem, where=self.prefix) from error

    def _read_bytes(
        self, name: str, entry: BundleEntry, expected: int | None = None
    ) -> tuple[Path, bytes]:
        path = Path(f"{self.prefix}.data-{entry.shard:05d}-of-{self._shards:05d}")
        if not path.exists():
            fix = f"copy it to where {Path(self.prefix).name}.index lies"
            raise UserError("the checkpoint's data file is missing", where=str(path), fix=fix)
        with open_untrusted(path, most=MAX_WEIGHTS_BYTES) as file:
            # A damaged index may name any place and any size.
            available = max(0, os.fstat(file.fileno()).st_size - entry.offset)
            file.seek(entry.offset if available else 0)
            data = file.read(min(entry.size, available))
        expected = entry.size if expected is None else expected
        if len(data) != entry.size or entry.size != expected:
            refuse_other_content(path)
            problem = f"{name!r} should have {expected} bytes and has {len(data)}"
            fix = "copy the file again: it is cut off, or belongs to another index"
            raise UserError(problem, where=str(path), fix=fix)
        return path, data


def _damaged(name: str, path: Path) -> UserError:
    problem = f"the values of {name!r} are damaged: their checksum is wrong"
    return UserError(problem, where=str(path), fix="copy the file again")


_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
# TensorFlow's readers require version 1.
_PRODUCER, _FIXED32 = 1, 5
_BLOCK_BYTES, _RESTART_INTERVAL, _HANDLES_BYTES = 4096, 16, 40

TableEntry = tuple[bytes, bytes]


def checkpoint_files(prefix: str | Path) -> tuple[Path, Path]:
    """Returns the data file and the index of a checkpoint that is written here."""
    return Path(f"{prefix}.data-00000-of-00001"), Path(f"{prefix}.index")


def write_tf1_checkpoint(prefix: str | Path, arrays: Mapping[str, np.ndarray | bytes]) -> None:
    """Writes variables, replacing a checkpoint of that prefix.

    Args:
        prefix: path without `.index`, as `model.ckpt-1000`; its folder exists.
        arrays: by name; bool, integers, or floating point of 16, 32 or 64 bits, bfloat16 too; or a
            text.
    """
    data, index = checkpoint_files(prefix)
    entries: list[TableEntry] = []
    with unfinished_files(data, index) as (new_data, new_index):
        with create_file(new_data) as file:
            for name, value in sorted(arrays.items(), key=lambda item: item[0].encode()):
                content, covered = _encode(value)
                entry = _entry(value, file.tell(), len(content), covered)
                entries.append((name.encode(), entry))
                file.write(content)
            file.flush()
            os.fsync(file.fileno())

        def install(shards: int) -> None:
            write_durably(new_index, _table([(b"", _header(shards)), *entries]))
            new_index.replace(index)
            sync_folder(index.parent)

        with _second_name(prefix, new_data, install):
            new_data.replace(data)
            sync_folder(data.parent)
            install(1)


@contextmanager
def _second_name(prefix: str | Path, data: Path, install: Callable[[int], None]) -> Iterator[None]:
    """Lets the index name new values under another name, while their final name has old ones.

    There is thus a complete checkpoint at every moment after the first index, and no data file of
    the final name without an index.

    Args:
        prefix: of the checkpoint.
        data: the new values.
        install: replaces the index by the index of new values, in the first of so many data files.
    """
    names = ((shards, Path(f"{prefix}.data-00000-of-{shards:05d}")) for shards in count(2))
    shards, second = next((shards, path) for shards, path in names if not os.path.lexists(path))
    link_or_copy(data, second)
    install(shards)
    yield
    # Files of processes that were killed go too. A set of several files has a file 1.
    for path in second.parent.glob(f"{escape(Path(prefix).name)}.data-00000-of-*"):
        shards_of = path.name.rpartition("-")[2]
        if shards_of != "00001" and not Path(f"{prefix}.data-00001-of-{shards_of}").exists():
            path.unlink()


def _header(shards: int) -> bytes:
    """Returns a `BundleHeaderProto`: the number of data files, little-endian, the version."""
    return varint_field(1, shards) + bytes_field(3, varint_field(1, _PRODUCER))


def _encode(value: np.ndarray | bytes) -> tuple[bytes, bytes]:
    """Returns what is written of a variable, and what its checksum covers.

    The length of a text is written as a varint, and enters the checksums as four bytes.
    """
    if not isinstance(value, bytes):
        content = value.tobytes()
        return content, content
    length = struct.pack("<I", len(value))
    rest = struct.pack("<I", masked_crc32c(length)) + value
    return encode_varint(len(value)) + rest, length + rest


def _entry(value: np.ndarray | bytes, offset: int, size: int, covered: bytes) -> bytes:
    """Returns a `BundleEntryProto`: type, shape, place in data file 0, and checksum."""
    number, shape = (
        (STRING, ()) if isinstance(value, bytes) else (_NUMBERS[value.dtype], value.shape)
    )
    axes = b"".join(bytes_field(2, varint_field(1, length)) for length in shape)
    kind = varint_field(1, number)
    place = varint_field(4, offset) + varint_field(5, size)
    checksum = encode_varint(6 << 3 | _FIXED32) + struct.pack("<I", masked_crc32c(covered))
    return kind + bytes_field(2, axes) + place + checksum


def _table(entries: Iterable[TableEntry]) -> bytes:
    out = bytearray()
    handles = [(last, _append(out, block)) for last, block in _blocks(entries)]
    # The metaindex is empty. A key of the index block is the last one of a data block.
    footer = _append(out, _block([])) + _append(out, _block(handles))
    return bytes(out) + footer.ljust(_HANDLES_BYTES, b"\0") + struct.pack("<Q", MAGIC)


def _blocks(entries: Iterable[TableEntry]) -> Iterator[TableEntry]:
    """Yields blocks of about 4 KiB, each with its last key."""
    held: list[TableEntry] = []
    size = 0
    for key, value in entries:
        held.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES:
            yield key, _block(held)
            held, size = [], 0
    if held:
        yield held[-1][0], _block(held)


def _block(entries: list[TableEntry]) -> bytes:
    """Returns a block. Keys omit the prefix of the key before, but for every restart."""
    data, restarts, previous = bytearray(), [], b""
    for index, (key, value) in enumerate(entries):
        if index % _RESTART_INTERVAL == 0:
            restarts.append(len(data))
            previous = b""
        shared = sum(takewhile(bool, map(eq, key, previous)))
        lengths = (shared, len(key) - shared, len(value))
        data += b"".join(map(encode_varint, lengths)) + key[shared:] + value
        previous = key
    # Even an empty block has a restart.
    restarts = restarts or [0]
    return bytes(data) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _append(out: bytearray, block: bytes) -> bytes:
    """Appends a block with its trailer (no compression, checksum); returns its handle."""
    handle = encode_varint(len(out)) + encode_varint(len(block))
    kind = b"\0"
    out += block + kind + struct.pack("<I", masked_crc32c(block + kind))
    return handle
