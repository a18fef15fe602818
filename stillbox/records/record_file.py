"""Random access to a TFRecord file by an index of the byte offset of every record.

The index is stored in the cache folder, `$XDG_CACHE_HOME/stillbox`, by default
`~/.cache/stillbox`, and rebuilt when the file's size or modification time changes. Gzip has no
random access: a compressed file is decompressed once into the cache folder and read from there.
"""

import gzip
import hashlib
import json
import os
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.records.files import try_lock, write_whole
from stillbox.records.tfrecord import (
    FRAME_BYTES,
    HEADER_BYTES,
    RecordError,
    crc32c,
    header_fault,
    is_header,
    payload_length,
    record_error,
    record_location,
    unframe,
)
from stillbox.untrusted import open_untrusted, read_untrusted

BROKEN = ".broken"
"""Suffix of the copy of a gzip file that breaks off."""
_COPY_BYTES = 1 << 20
_NEW, _LEFTOVER_SECONDS = ".new-", 60
# Images hardly shrink; zeros shrink by a thousand. A small file has a block anyway.
_MOST_COMPRESSION = 200


def is_gzip(first_bytes: bytes) -> bool:
    """Distinguishes a gzip file from a plain TFRecord file by its first 12 bytes.

    A record of 559,903 bytes starts like gzip too, but then the checksum of the length is right.
    """
    return first_bytes.startswith(b"\x1f\x8b\x08") and not is_header(first_bytes)


def cache_folder() -> Path:
    """Returns the folder for files that can be made again: indexes and decompressed files."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "stillbox"


def path_key(path: Path) -> str:
    """Returns a short name that is unique to a path."""
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]


def decompressed(path: Path) -> Path:
    """Returns the plain copy of a gzip file, made on the first call.

    A gzip stream that breaks off gives the bytes before the break in a file with suffix `BROKEN`.
    """
    state = path.stat()
    folder = cache_folder() / "decompressed"
    key = path_key(path)
    whole = folder / f"{key}-{state.st_size}-{state.st_mtime_ns}.record"
    broken = whole.with_suffix(BROKEN)
    for copy in (whole, broken):
        if copy.exists():
            return copy
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        with (
            tempfile.NamedTemporaryFile(dir=folder, prefix=_NEW, delete=False) as file,
            _removed_on_error(Path(file.name)),
        ):
            try_lock(file.fileno())
            complete = _decompress(path, file.file)
    except OSError as error:
        raise UserError(
            f"there is no room for the decompressed copy of a gzip file: {error}",
            where=str(path),
            fix="let XDG_CACHE_HOME name a folder with room, or decompress the file with gunzip",
        ) from error
    for outdated in folder.glob(f"{key}-*"):
        outdated.unlink(missing_ok=True)
    return Path(file.name).replace(whole if complete else broken)


def _remove_leftovers(folder: Path) -> None:
    """Removes old copies without a lock, left by processes that were killed."""
    for leftover in folder.glob(f"{_NEW}*"):
        with suppress(OSError, UserError), open_untrusted(leftover, most=None) as file:
            old = time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS
            if old and try_lock(file.fileno()):
                leftover.unlink()


@contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink()
        raise


def _decompress(path: Path, target: IO[bytes]) -> bool:
    """Decompresses up to the first fault; returns whether there was none."""
    with open_untrusted(path, most=None) as file, gzip.GzipFile(fileobj=file) as stream:
        left = _MOST_COMPRESSION * os.fstat(file.fileno()).st_size
        try:
            # read1 returns what was decompressed before a fault.
            while block := stream.read1(_COPY_BYTES):
                left -= len(block)
                if left < 0:
                    raise UserError(
                        f"the gzip file unpacks to more than {_MOST_COMPRESSION} times of its size",
                        where=str(path),
                        fix="see what it is; if it is right, decompress it with gunzip",
                    )
                target.write(block)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return False
    return True


_FORMAT = "stillbox index 1"
# Of 134 million records.
_MOST_INDEX_BYTES = 2**30
# Descriptors that stay open, over all files; the rest is opened for every read. Sets of thousands
# of shards exist, and the usual limit of a process is 256 or 1024.
_KEPT_OPEN = threading.BoundedSemaphore(128)


class RecordFile:
    """One TFRecord file, plain or gzip, its records in any order, from any thread.

    With `salvage`, a damaged file has the records before the damage, which is in `damage`.

    Raises:
        RecordError: the file is damaged or no TFRecord file, with record number and byte offset.
    """

    def __init__(self, path: str | Path, *, salvage: bool = False) -> None:
        self.path = Path(path)
        self.damage: RecordError | None = None
        """The fault after the last usable record."""
        with open_untrusted(self.path, most=None) as file:
            first = file.read(HEADER_BYTES)
        self._data = decompressed(self.path) if is_gzip(first) else self.path
        state = self._data.stat()
        self.size = state.st_size
        """Bytes of the records, unpacked."""
        self._version = _version(state)
        offsets = _load_index(self._data, state)
        if offsets is None:
            offsets, fault = _scan(self._data, state.st_size)
            if not fault and self._data.suffix == BROKEN:
                fault = "the gzip stream breaks off or is damaged from here on"
            if fault:
                where = record_location(self.path, len(offsets) - 1, int(offsets[-1]))
                self.damage = record_error(fault, where)
            else:
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
            RecordError: its bytes do not match the checksums.
        """
        offset, end = int(self._offsets[record]), int(self._offsets[record + 1])
        try:
            payload = unframe(self._read_at(offset, end - offset))
            replaced = payload is None and _version(self._data.stat()) != self._version
        except _ReplacedError:
            payload, replaced = None, True
        if payload is None:
            fault = "the checksum of the record's content is wrong: its bytes are damaged"
            if replaced:
                fault = "the file was changed or replaced after it was opened"
            raise record_error(fault, self.location(record))
        return payload

    def location(self, record: int) -> str:
        """Returns the description of a record in messages: file, number, byte."""
        return record_location(self.path, record, int(self._offsets[record]))

    def _read_at(self, offset: int, size: int) -> bytes:
        if self._descriptor < 0 and _KEPT_OPEN.acquire(blocking=False):
            self._keep_open()
        if self._descriptor >= 0:
            return os.pread(self._descriptor, size, offset)
        descriptor = self._open()
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)

    def _keep_open(self) -> None:
        """Opens the file for good; the caller has acquired one of the permits."""
        with self._lock:
            if self._descriptor >= 0:  # another thread was faster
                _KEPT_OPEN.release()
                return
            try:
                self._descriptor = self._open()
            except BaseException:
                _KEPT_OPEN.release()
                raise
        weakref.finalize(self, _close, self._descriptor)

    def _open(self) -> int:
        """Opens the file that the offsets belong to.

        Raises:
            _ReplacedError: another one has its name by now.
        """
        with open_untrusted(self._data, most=None) as file:
            descriptor = os.dup(file.fileno())
        if _version(os.fstat(descriptor)) != self._version:
            os.close(descriptor)
            raise _ReplacedError
        return descriptor


class _ReplacedError(Exception):
    """A file is not the one that was indexed."""


def _version(state: os.stat_result) -> tuple[int, int]:
    return state.st_size, state.st_mtime_ns


def _close(descriptor: int) -> None:
    os.close(descriptor)
    _KEPT_OPEN.release()


def _scan(data: Path, size: int) -> tuple[NDArray[np.uint64], str]:
    """Returns the offset of every record and of the end of the last one, and the fault there."""
    offsets, at, fault = [0], 0, ""
    with open_untrusted(data, most=None) as file:
        while at < size and not fault:
            header = os.pread(file.fileno(), HEADER_BYTES, at)
            fault = header_fault(header, size - at, first=at == 0)
            if not fault:
                at += FRAME_BYTES + payload_length(header)
                offsets.append(at)
    return np.array(offsets, np.uint64), fault


def _index_path(data: Path) -> Path:
    return cache_folder() / "indexes" / f"{path_key(data)}.{data.name}.index"


def _load_index(data: Path, state: os.stat_result) -> NDArray[np.uint64] | None:
    try:
        head, _, body = read_untrusted(_index_path(data), most=_MOST_INDEX_BYTES).partition(b"\n")
        stored = json.loads(head)
    except (OSError, ValueError, RecursionError):
        return None
    if stored != _index_head(state, body) or len(body) % 8:
        return None
    offsets = np.frombuffer(body, "<u8")
    # The cache is not trusted, as the records are not.
    rising = len(offsets) and np.all(offsets[1:] > offsets[:-1])
    return offsets if rising and offsets[0] == 0 and offsets[-1] <= state.st_size else None


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
    # Reading works without an index.
    with suppress(UserError):
        write_whole(_index_path(data), content)
