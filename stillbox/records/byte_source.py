"""Reads parts of files and of objects in a bucket, from any thread.

Blocks of objects are kept in the cache folder. A block enters while there is room: if all objects
of a run fit, each byte is fetched once; if not, a part of the records is always there, and of the
others exactly their bytes are fetched. Blocks of objects that no open source reads make room.
"""

import hashlib
import io
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path, PurePath
from typing import IO, Protocol

from stillbox.errors import UserError
from stillbox.object_storage import ObjectPath, object_at
from stillbox.records.files import write_whole
from stillbox.records.tfrecord import HEADER_BYTES
from stillbox.system import read_at
from stillbox.untrusted import open_untrusted

Read = Callable[[int, int], bytes]
"""Returns the bytes from an offset on, of a given number; fewer at the end of the file."""

BLOCK_BYTES = 2**22
CACHE_BYTES = 32 * 2**30
"""Greatest size of all blocks, of which the disk keeps a tenth free."""
_COUNTED_EVERY = 64
# Descriptors that stay open, over all files; the rest is opened for every read. Sets of thousands
# of shards exist, and the usual limit of a process is 256 or 1024.
_KEPT_OPEN = threading.BoundedSemaphore(128)
REPLACED = "the file was changed or replaced after it was opened"


class ReplacedError(UserError):
    """A file is not the one that was opened."""


def _replaced(path: PurePath) -> ReplacedError:
    return ReplacedError(REPLACED, where=str(path), fix="run this again when its writer has ended")


class ByteSource(Protocol):
    """A file or an object."""

    path: PurePath
    size: int
    """Bytes."""
    key: str
    """A short name that is unique to the path."""
    identity: dict[str, object]
    """The size, and what else changes with the content."""
    head: bytes
    """The first bytes, of which the header of a record has as many."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns bytes; raises `ReplacedError` if the file has been replaced."""

    def fetch_again(self, offset: int, size: int) -> bytes | None:
        """Returns bytes that are not from a cache; None if they never are."""

    def replaced(self) -> bool:
        """Whether the file was changed or replaced after it was opened."""

    def reading(self) -> AbstractContextManager[Read]:
        """Yields a function for many small reads in the order of the file."""

    def stream(self) -> AbstractContextManager[IO[bytes]]:
        """Yields the file from its beginning."""


def open_source(path: PurePath) -> ByteSource:
    """Returns the bytes of a file or of an object.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    return RemoteBytes(path) if isinstance(path, ObjectPath) else LocalBytes(Path(path))


def cache_folder() -> Path:
    """Returns the folder for files that can be made again: indexes, blocks, decompressed files."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "stillbox"


class LocalBytes:
    """The bytes of a file, see `ByteSource`."""

    def __init__(self, path: Path) -> None:
        self.path: PurePath = path
        self._file = path
        with open_untrusted(path, most=None) as file:
            state = os.fstat(file.fileno())
            self.head = read_at(file.fileno(), HEADER_BYTES, 0)
        self.size, self._version = state.st_size, _version(state)
        self.key = _short_name(os.fsencode(path.resolve()))
        self.identity: dict[str, object] = {"size": state.st_size, "mtime_ns": state.st_mtime_ns}
        self._lock = threading.Lock()
        self._descriptor = -1

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns bytes; raises `ReplacedError` if the file has been replaced."""
        if self._descriptor < 0 and _KEPT_OPEN.acquire(blocking=False):
            self._keep_open()
        if self._descriptor >= 0:
            return read_at(self._descriptor, size, offset)
        descriptor = self._open()
        try:
            return read_at(descriptor, size, offset)
        finally:
            os.close(descriptor)

    def fetch_again(self, offset: int, size: int) -> bytes | None:
        """Returns None: the disk has been read already."""
        return None

    def replaced(self) -> bool:
        """Whether the file was changed or replaced after it was opened."""
        return _version(self._file.stat()) != self._version

    @contextmanager
    def reading(self) -> Iterator[Read]:
        """Yields a function that reads the file, which stays open meanwhile."""
        with open_untrusted(self._file, most=None) as file:
            yield lambda offset, size: read_at(file.fileno(), size, offset)

    @contextmanager
    def stream(self) -> Iterator[IO[bytes]]:
        """Yields the open file."""
        with open_untrusted(self._file, most=None) as file:
            yield file

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
        weakref.finalize(self, _close, self._descriptor, _KEPT_OPEN)

    def _open(self) -> int:
        with open_untrusted(self._file, most=None) as file:
            descriptor = os.dup(file.fileno())
        if _version(os.fstat(descriptor)) != self._version:
            os.close(descriptor)
            raise _replaced(self.path)
        return descriptor


def _version(state: os.stat_result) -> tuple[int, int]:
    return state.st_size, state.st_mtime_ns


def _close(descriptor: int, permits: threading.Semaphore) -> None:
    os.close(descriptor)
    permits.release()


def _short_name(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


class BlockCache:
    """Blocks of objects on disk, up to a limit of bytes. Several processes may share them."""

    def __init__(self, folder: Path, limit: int = CACHE_BYTES) -> None:
        self._folder, self._limit = folder, limit
        self._lock = threading.Lock()
        self._used, self._admitted = 0, _COUNTED_EVERY
        self._in_use: set[str] = set()

    def use(self, key: str) -> None:
        """Keeps the blocks of an object from now on."""
        with self._lock:
            self._in_use.add(key)
        # The least recently used are removed first.
        with suppress(OSError):
            os.utime(self._folder / key)

    def read(self, key: str, block: int, start: int = 0, end: int = BLOCK_BYTES) -> bytes | None:
        """Returns the bytes of a block from `start` to before `end`, if it is there."""
        with (
            suppress(UserError, OSError),
            open_untrusted(self._path(key, block), most=BLOCK_BYTES) as file,
        ):
            return read_at(file.fileno(), end - start, start)
        return None

    def write(self, key: str, block: int, content: bytes) -> None:
        """Keeps a block for which `has_room` was true; a full disk is no error."""
        with suppress(UserError, OSError):
            write_whole(self._path(key, block), content)

    def remove(self, key: str, block: int) -> None:
        """Removes a block."""
        with suppress(OSError):
            self._path(key, block).unlink()

    def has_room(self) -> bool:
        """Whether one more block may be written; counts it."""
        with self._lock:
            if self._admitted >= _COUNTED_EVERY:
                self._used, self._admitted = self._count(), 0
            if self._used + BLOCK_BYTES > self._most() and not self._make_room():
                return False
            self._used += BLOCK_BYTES
            self._admitted += 1
            return True

    def _most(self) -> int:
        with suppress(OSError):
            folders = (self._folder, *self._folder.parents)
            disk = shutil.disk_usage(next(path for path in folders if path.exists()))
            return min(self._limit, self._used + disk.free - disk.total // 10)
        return self._limit

    def _count(self) -> int:
        sizes = [0]
        for folder in self._objects():
            with suppress(OSError):
                sizes += [entry.stat().st_size for entry in os.scandir(folder)]
        return sum(sizes)

    def _make_room(self) -> bool:
        """Removes the blocks of the object that was used longest ago, if none reads it."""
        unused = [folder for folder in self._objects() if folder.name not in self._in_use]
        if not unused:
            return False
        shutil.rmtree(min(unused, key=_used_at), ignore_errors=True)
        self._used = self._count()
        return self._used + BLOCK_BYTES <= self._most()

    def _objects(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if path.is_dir()]
        except OSError:
            return []

    def _path(self, key: str, block: int) -> Path:
        return self._folder / key / f"{block:08d}"


def _used_at(folder: Path) -> float:
    with suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


class RemoteBytes:
    """The bytes of an object, see `ByteSource`."""

    def __init__(self, path: ObjectPath, blocks: BlockCache | None = None) -> None:
        self.path: PurePath = path
        self._objects, self._name = object_at(str(path))
        entry = self._objects.find(self._name)
        if entry is None:
            raise UserError("there is no such object", where=str(path))
        self.size, self._tag = entry
        self.identity: dict[str, object] = {"size": self.size, "version": self._tag}
        self.key = _short_name(str(path).encode())
        self._cache = blocks or _shared_cache(cache_folder() / "blocks")
        self._blocks_of = f"{self.key}-{_short_name(f'{self.size} {self._tag}'.encode())}"
        self._cache.use(self._blocks_of)
        self._locks: dict[int, threading.Lock] = {}
        self.head = self.read_at(0, HEADER_BYTES)

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns bytes: from blocks that are kept or may be, otherwise exactly these."""
        end = min(offset + size, self.size)
        parts = []
        for number in range(offset // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            first = number * BLOCK_BYTES
            part = self._kept(number, max(offset - first, 0), min(end - first, BLOCK_BYTES))
            if part is None:
                return self._fetch(offset, end)
            parts.append(part)
        return b"".join(parts)

    def fetch_again(self, offset: int, size: int) -> bytes | None:
        """Returns bytes from the service, and removes their blocks: a disk may fail."""
        end = min(offset + size, self.size)
        for number in range(offset // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            self._cache.remove(self._blocks_of, number)
        return self._fetch(offset, end)

    def replaced(self) -> bool:
        """Whether the object was replaced after it was opened."""
        entry = self._objects.find(self._name)
        return entry is None or tuple(entry) != (self.size, self._tag)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        """Yields a function that fetches whole blocks, of which the last one stays in memory."""
        last: tuple[int, bytes] = (-1, b"")

        def read(offset: int, size: int) -> bytes:
            nonlocal last
            content = b""
            while len(content) < size and (at := offset + len(content)) < self.size:
                number = at // BLOCK_BYTES
                if last[0] != number:
                    last = number, self._kept(number) or self._fetch_block(number)
                first = at - number * BLOCK_BYTES
                content += last[1][first : first + size - len(content)]
            return content

        yield read

    @contextmanager
    def stream(self) -> Iterator[IO[bytes]]:
        """Yields the object from its beginning."""
        with self.reading() as read, io.BufferedReader(_Stream(read), BLOCK_BYTES) as file:
            yield file

    def _kept(self, number: int, start: int = 0, end: int = BLOCK_BYTES) -> bytes | None:
        """Returns a part of a block that is kept, or is from now on; None if there is no room."""
        end = min(end, BLOCK_BYTES, self.size - number * BLOCK_BYTES)
        if part := self._cached(number, start, end):
            return part
        # Threads that need the same block wait for one of them.
        with self._locks.setdefault(number, threading.Lock()):
            if part := self._cached(number, start, end):
                return part
            if not self._cache.has_room():
                return None
            block = self._fetch_block(number)
            self._cache.write(self._blocks_of, number, block)
            return block[start:end]

    def _cached(self, number: int, start: int, end: int) -> bytes | None:
        """Returns a part of a block that is kept whole: a machine that loses power cuts files."""
        part = self._cache.read(self._blocks_of, number, start, end)
        return part if part is not None and len(part) == end - start else None

    def _fetch_block(self, number: int) -> bytes:
        start = number * BLOCK_BYTES
        return self._fetch(start, min(start + BLOCK_BYTES, self.size))

    def _fetch(self, start: int, end: int) -> bytes:
        try:
            part = self._objects.read(self._name, start, end)
        except FileNotFoundError:
            raise _replaced(self.path) from None
        if len(part) != end - start:
            raise _replaced(self.path)
        return part


class _Stream(io.RawIOBase):
    """The bytes that a function reads, from the first on."""

    def __init__(self, read: Read) -> None:
        self._read, self._at = read, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = self._read(self._at, len(buffer))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


# One for all objects of a process, as its limit is.
_shared_cache = cache(BlockCache)
