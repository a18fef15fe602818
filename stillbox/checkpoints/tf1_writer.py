"""Writes TF1 checkpoints (format V2) without TensorFlow; `tf1.py` reads them.

One data file holds the bytes of all variables, and the index, a table sorted by name, their places.
Both get their names after the disk has them, the index last: then an index means
a complete checkpoint.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from operator import eq
from pathlib import Path

import numpy as np

from stillbox.checkpoints.files import sync_folder, unfinished_files, write_durably
from stillbox.checkpoints.tf1_index import DTYPES, MAGIC, STRING
from stillbox.records.crc32c import masked_crc32c
from stillbox.records.files import create_file
from stillbox.records.wire import bytes_field, encode_varint, varint_field

_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
# TensorFlow's readers require version 1.
_PRODUCER, _FIXED32 = 1, 5
_BLOCK_BYTES, _RESTART_INTERVAL, _HANDLES_BYTES = 4096, 16, 40

Entry = tuple[bytes, bytes]


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
    entries = [(b"", _header())]
    with unfinished_files(data, index) as unfinished:
        with create_file(unfinished[0]) as file:
            for name, value in sorted(arrays.items(), key=lambda item: item[0].encode()):
                content, covered = _encode(value)
                entry = _entry(value, file.tell(), len(content), covered)
                entries.append((name.encode(), entry))
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        write_durably(unfinished[1], _table(entries))
        # An old index must not be found beside new data.
        index.unlink(missing_ok=True)
        unfinished[0].replace(data)
        unfinished[1].replace(index)
    sync_folder(data.parent)


def _header() -> bytes:
    """Returns a `BundleHeaderProto`: one data file, little-endian, the version."""
    return varint_field(1, 1) + bytes_field(3, varint_field(1, _PRODUCER))


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


def _table(entries: Iterable[Entry]) -> bytes:
    """Returns LevelDB's table of entries that are sorted by key."""
    out = bytearray()
    handles = [(last, _append(out, block)) for last, block in _blocks(entries)]
    # The metaindex is empty. A key of the index block is the last one of a data block.
    footer = _append(out, _block([])) + _append(out, _block(handles))
    return bytes(out) + footer.ljust(_HANDLES_BYTES, b"\0") + struct.pack("<Q", MAGIC)


def _blocks(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yields blocks of about 4 KiB, each with its last key."""
    held: list[Entry] = []
    size = 0
    for key, value in entries:
        held.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES:
            yield key, _block(held)
            held, size = [], 0
    if held:
        yield held[-1][0], _block(held)


def _block(entries: list[Entry]) -> bytes:
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
