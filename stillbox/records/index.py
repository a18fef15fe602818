"""Random access to a TFRecord file: the byte offset of every record, built once and kept.

The index lies beside the file as `.<name>.index`, or in the cache folder where the file's own
folder cannot be written. It is made anew when size or modification time of the file change.
A gzip file is read through its decompressed copy (`cache`).
"""

import json
import os
import tempfile
import threading
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stillbox.records.cache import BROKEN, cache_folder, decompressed, path_key
from stillbox.records.crc32c import crc32c
from stillbox.records.framing import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    PAYLOAD_FAULT,
    REPAIR,
    RecordError,
    header_fault,
    is_header,
    length_fault,
    payload_is_sound,
    payload_length,
    record_place,
)
from stillbox.records.tfrecord import GZIP_FAULT, is_gzip

_FORMAT = "stillbox index 1"
# Descriptors that stay open, over all files; the rest is opened for every read. Sets of thousands
# of shards exist, and the usual limit of a process is 256 or 1024.
_KEPT_OPEN = threading.BoundedSemaphore(128)


class RecordFile:
    """One TFRecord file, its records in any order, from any thread.

    Args:
        path: the file, plain or gzip.
        salvage: of a damaged file, use the records before the damage and say so in `damage`;
            otherwise it is refused.

    Raises:
        RecordError: the file is damaged or no TFRecord file, with record number and byte offset.
    """

    def __init__(self, path: str | Path, *, salvage: bool = False) -> None:
        self.path = Path(path)
        self.damage: RecordError | None = None
        """What is wrong with the file after its last usable record."""
        with self.path.open("rb") as file:
            first = file.read(HEADER_BYTES)
        self._data = decompressed(self.path) if is_gzip(first) else self.path
        state = self._data.stat()
        offsets = _load_index(self._data, state)
        if offsets is None:
            offsets, self.damage = _scan(self._data, self.path, state.st_size)
            if self.damage is None and self._data.suffix == BROKEN:
                place = record_place(self.path, len(offsets) - 1, int(offsets[-1]))
                self.damage = RecordError(GZIP_FAULT, where=place, fix=REPAIR)
            if self.damage is None:
                _save_index(self._data, state, offsets)
        if self.damage is not None and not salvage:
            raise self.damage
        self._offsets = offsets
        self._lock = threading.Lock()
        self._descriptor = -1

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def read(self, record: int) -> bytes:
        """Returns the payload of a record.

        Raises:
            RecordError: its bytes are not what the checksums say.
        """
        offset = int(self._offsets[record])
        size = int(self._offsets[record + 1]) - offset
        framed = self._read_at(offset, size)
        payload, footer = framed[HEADER_BYTES:-FOOTER_BYTES], framed[-FOOTER_BYTES:]
        if (
            len(framed) < size
            or not is_header(framed[:HEADER_BYTES])
            or not payload_is_sound(payload, footer)
        ):
            raise RecordError(PAYLOAD_FAULT, where=self.place(record), fix=REPAIR)
        return payload

    def place(self, record: int) -> str:
        """Returns the words for a record: file, number, byte."""
        return record_place(self.path, record, int(self._offsets[record]))

    def _read_at(self, offset: int, size: int) -> bytes:
        if self._descriptor < 0 and _KEPT_OPEN.acquire(blocking=False):
            self._keep_open()
        if self._descriptor >= 0:
            return os.pread(self._descriptor, size, offset)
        descriptor = os.open(self._data, os.O_RDONLY)
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)

    def _keep_open(self) -> None:
        """Opens the file for good; the caller has taken one of the permits."""
        with self._lock:
            if self._descriptor >= 0:  # another thread was faster
                _KEPT_OPEN.release()
                return
            self._descriptor = os.open(self._data, os.O_RDONLY)
        weakref.finalize(self, _close, self._descriptor)


def _close(descriptor: int) -> None:
    os.close(descriptor)
    _KEPT_OPEN.release()


def _scan(data: Path, shown: Path, size: int) -> tuple[NDArray[np.uint64], RecordError | None]:
    """Walks over the record headers.

    Returns:
        The offset of every record and of the end of the last one, and the damage if there is some.
    """
    offsets, damage, at = [0], None, 0
    with data.open("rb", buffering=0) as file:
        while at < size:
            file.seek(at)
            header = file.read(HEADER_BYTES)
            fault = None
            if not is_header(header):
                fault = header_fault(header, len(offsets) - 1)
            elif payload_length(header) + FOOTER_BYTES > size - at - HEADER_BYTES:
                fault = length_fault(payload_length(header), size - at - HEADER_BYTES)
            if fault:
                place = record_place(shown, len(offsets) - 1, at)
                damage = RecordError(fault, where=place, fix=REPAIR)
                break
            at += FRAME_BYTES + payload_length(header)
            offsets.append(at)
    return np.array(offsets, np.uint64), damage


def _index_places(data: Path) -> tuple[Path, Path]:
    name = f".{data.name}.index"
    return data.parent / name, cache_folder() / "indexes" / f"{path_key(data)}{name}"


def _load_index(data: Path, state: os.stat_result) -> NDArray[np.uint64] | None:
    """Returns the kept offsets, or None where there are none that fit the file."""
    for place in _index_places(data):
        try:
            head, _, body = place.read_bytes().partition(b"\n")
            says = json.loads(head)
        except (OSError, ValueError):
            continue
        if says == _index_head(state, body):
            return np.frombuffer(body, "<u8")
    return None


def _index_head(state: os.stat_result, body: bytes) -> dict[str, object]:
    return {
        "format": _FORMAT,
        "size": state.st_size,
        "mtime_ns": state.st_mtime_ns,
        "crc32c": crc32c(body),
    }


def _save_index(data: Path, state: os.stat_result, offsets: NDArray[np.uint64]) -> None:
    body = offsets.astype("<u8").tobytes()
    content = json.dumps(_index_head(state, body)).encode() + b"\n" + body
    beside, cached = _index_places(data)
    for place in (beside, cached):
        # Root may write anywhere; a folder that is marked read-only is left alone all the same.
        if place is beside and not data.parent.stat().st_mode & 0o222:
            continue
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _write_atomically(place, content)
        except OSError:
            continue  # a cache is a help, not a condition
        return


def _write_atomically(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
        file.write(content)
    fresh = Path(file.name)
    fresh.chmod(0o644)  # a temporary file is its owner's alone
    fresh.replace(path)
