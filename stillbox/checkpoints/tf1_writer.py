"""Writes TF1 checkpoints (format V2) without TensorFlow; `tf1.py` reads them.

One data file holds the bytes of all variables, and the index, a table sorted by name, says where
they lie. Both get their names when the disk has them, the index last: whoever finds an index finds
all of the checkpoint.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from stillbox.checkpoints.files import sync_folder, write_durably
from stillbox.checkpoints.tf1_bundle import DTYPES
from stillbox.checkpoints.tf1_table import MAGIC
from stillbox.records.crc32c import masked_crc32c

_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
# As TensorFlow writes it, whose readers ask for version 1.
_PRODUCER = 1
_BLOCK_BYTES, _RESTART_INTERVAL, _HANDLES_BYTES = 4096, 16, 40

Entry = tuple[bytes, bytes]


def checkpoint_files(prefix: str | Path) -> tuple[Path, Path]:
    """Returns the data file and the index of a checkpoint that is written here."""
    return Path(f"{prefix}.data-00000-of-00001"), Path(f"{prefix}.index")


def write_tf1_checkpoint(prefix: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes variables, replacing a checkpoint of that prefix.

    Args:
        prefix: path without `.index`, as `model.ckpt-1000`; its folder exists.
        arrays: by name; bool, integers, or floating point of 16, 32 or 64 bits, bfloat16 too.
    """
    data, index = checkpoint_files(prefix)
    unfinished = [path.with_name(f".{path.name}.unfinished") for path in (data, index)]
    entries = [(b"", _header())]
    with unfinished[0].open("wb") as file:
        for name, array in sorted(arrays.items(), key=lambda item: item[0].encode()):
            content = array.tobytes()
            entries.append((name.encode(), _entry(array, file.tell(), content)))
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    write_durably(unfinished[1], _table(entries))
    # An old index beside new data would point anywhere.
    index.unlink(missing_ok=True)
    unfinished[0].replace(data)
    unfinished[1].replace(index)
    sync_folder(data.parent)


def _header() -> bytes:
    """`BundleHeaderProto`: one data file, little-endian (0 is not written), the version."""
    return _field(1, 1) + _field(3, _field(1, _PRODUCER))


def _entry(array: np.ndarray, offset: int, content: bytes) -> bytes:
    """`BundleEntryProto`: type, shape, place and checksum; of data file 0, which is not written."""
    axes = b"".join(_field(2, _field(1, length)) for length in array.shape)
    checksum = _varint(6 << 3 | _FIXED32) + struct.pack("<I", masked_crc32c(content))
    place = _field(4, offset) + _field(5, len(content))
    return _field(1, _NUMBERS[array.dtype]) + _field(2, axes) + place + checksum


def _field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol message; numbers that are 0 are left out."""
    if isinstance(value, bytes):
        return _varint(number << 3 | _BYTES) + _varint(len(value)) + value
    return _varint(number << 3 | _VARINT) + _varint(value) if value else b""


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _table(entries: Iterable[Entry]) -> bytes:
    """LevelDB's table of entries that are sorted by key."""
    out = bytearray()
    handles = [(last, _append(out, block)) for last, block in _blocks(entries)]
    # The metaindex is empty; a key of the index is the last one of its block.
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
    """A block: each key without what it shares with the one before, but for the restarts."""
    data, restarts, previous = bytearray(), [], b""
    for index, (key, value) in enumerate(entries):
        shared = 0
        if index % _RESTART_INTERVAL:
            shared = _shared_bytes(key, previous)
        else:
            restarts.append(len(data))
        lengths = (shared, len(key) - shared, len(value))
        data += b"".join(map(_varint, lengths)) + key[shared:] + value
        previous = key
    # Even an empty block has a restart.
    restarts = restarts or [0]
    return bytes(data) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _shared_bytes(key: bytes, previous: bytes) -> int:
    for count, (byte, other) in enumerate(zip(key, previous, strict=False)):
        if byte != other:
            return count
    return min(len(key), len(previous))


def _append(out: bytearray, block: bytes) -> bytes:
    """Appends a block with its trailer (no compression, checksum); returns its handle."""
    handle = _varint(len(out)) + _varint(len(block))
    kind = b"\0"
    out += block + kind + struct.pack("<I", masked_crc32c(block + kind))
    return handle
