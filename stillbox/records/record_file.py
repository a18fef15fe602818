"""Random access to a TFRecord file by an index of the byte offset of every record.

The index is stored in the cache folder, `$XDG_CACHE_HOME/stillbox`, by default
`~/.cache/stillbox`, and made again when the file's size or modification time, or the object's tag,
changes. Gzip has no random access: a compressed file is decompressed once into the cache folder and
read from there.
"""

import gzip
import json
import os
import re
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import IO

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.records.byte_source import (
    REPLACED,
    ByteSource,
    ReplacedError,
    cache_folder,
    open_source,
)
from stillbox.records.files import write_whole
from stillbox.records.tfrecord import (
    DROP_RECORDS,
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
from stillbox.system import remove_unheld, try_lock
from stillbox.untrusted import read_untrusted

BROKEN = ".broken"
"""Suffix of the copy of a gzip file that breaks off."""
_COPY_BYTES = 1 << 20
_NEW, _LEFTOVER_SECONDS = ".new-", 60
# Images hardly shrink; zeros shrink by a thousand. A small file has a block anyway.
_MOST_COMPRESSION = 200


def is_gzip(first_bytes: bytes) -> bool:
    """Tells a gzip file from a TFRecord file by the checksum in its first 12 bytes."""
    return first_bytes.startswith(b"\x1f\x8b\x08") and not is_header(first_bytes)


def decompressed(source: ByteSource) -> Path:
    """Returns the plain copy of a gzip file, made once; suffix `BROKEN`: the stream breaks off."""
    folder = cache_folder() / "decompressed"
    state = "-".join(re.sub(r"\W", "", str(value)) for value in source.identity.values())
    whole = folder / f"{source.key}-{state}.record"
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
            complete = _decompress(source, file.file)
    except OSError as error:
        problem = f"there is no room for the decompressed copy of a gzip file: {error}"
        fix = "let XDG_CACHE_HOME name a folder with room, or decompress the file with gunzip"
        raise UserError(problem, where=str(source.path), fix=fix) from error
    for outdated in set(folder.glob(f"{source.key}-*")) - {whole, broken}:
        outdated.unlink(missing_ok=True)
    return _named(Path(file.name), whole if complete else broken)


def _named(new: Path, target: Path) -> Path:
    """Gives a complete copy its name, unless another process has a copy of the name in use."""
    try:
        os.link(new, target)
    except FileExistsError:
        pass
    except OSError:  # the file system has no hard links
        return new.replace(target)
    new.unlink()
    return target


def _remove_leftovers(folder: Path) -> None:
    """Removes old copies without a lock, left by processes that were killed."""
    for leftover in folder.glob(f"{_NEW}*"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS:
                remove_unheld(leftover)


@contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink()
        raise


def _decompress(source: ByteSource, target: IO[bytes]) -> bool:
    """Decompresses up to the first fault; returns whether there was none."""
    with source.stream() as file, gzip.GzipFile(fileobj=file) as stream:
        left = _MOST_COMPRESSION * source.size
        try:
            # read1 returns what was decompressed before a fault.
            while block := stream.read1(_COPY_BYTES):
                left -= len(block)
                if left < 0:
                    raise UserError(
                        f"the gzip file unpacks to more than {_MOST_COMPRESSION} times of its size",
                        where=str(source.path),
                        fix="see what it is; if it is right, decompress it with gunzip",
                    )
                target.write(block)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return False
    return True


_FORMAT = "stillbox index 1"
# The index of 134 million records.
_MOST_INDEX_BYTES = 2**30


class RecordFile:
    """One TFRecord file or object, plain or gzip, its records in any order, from any thread.

    With `salvage`, a damaged file has the records before the damage, which is in `damage`. `drop`
    is as for `record_error`.

    Raises:
        RecordError: the file is damaged or no TFRecord file, with record number and byte offset.
    """

    def __init__(
        self, path: str | PurePath, *, salvage: bool = False, drop: str = DROP_RECORDS
    ) -> None:
        self.path = Path(path) if isinstance(path, str) else path
        self._drop = drop
        self.damage: RecordError | None = None
        """The fault after the last usable record."""
        self._source, broken = open_source(self.path), False
        if is_gzip(self._source.head):
            copy = decompressed(self._source)
            self._source, broken = open_source(copy), copy.suffix == BROKEN
        self.size = self._source.size
        """Bytes of the records, unpacked."""
        offsets = _load_index(self._source)
        if offsets is None:
            offsets, fault = _scan(self._source)
            if not fault and broken:
                fault = "the gzip stream breaks off or is damaged from here on"
            if fault:
                where = record_location(self.path, len(offsets) - 1, int(offsets[-1]))
                self.damage = record_error(fault, where, drop)
            else:
                _save_index(self._source, offsets)
        if self.damage is not None and not salvage:
            raise self.damage
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def read(self, record: int) -> bytes:
        """Returns the payload of a record.

        Raises:
            RecordError: its bytes do not match the checksums.
        """
        offset, end = int(self._offsets[record]), int(self._offsets[record + 1])
        try:
            payload = unframe(self._source.read_at(offset, end - offset))
            if payload is None and (again := self._source.fetch_again(offset, end - offset)):
                payload = unframe(again)
            replaced = payload is None and self._source.replaced()
        except ReplacedError:
            payload, replaced = None, True
        if payload is None:
            fault = "the checksum of the record's content is wrong: its bytes are damaged"
            if replaced:
                fault = REPLACED
            raise record_error(fault, self.location(record), self._drop)
        return payload

    def location(self, record: int) -> str:
        """Returns the description of a record in messages: file, number, byte."""
        return record_location(self.path, record, int(self._offsets[record]))


def _scan(source: ByteSource) -> tuple[NDArray[np.uint64], str]:
    """Returns the offset of every record and of the end of the last one, and the fault there."""
    offsets, at, fault = [0], 0, ""
    with source.reading() as read:
        while at < source.size and not fault:
            header = read(at, HEADER_BYTES)
            fault = header_fault(header, source.size - at, first=at == 0)
            if not fault:
                at += FRAME_BYTES + payload_length(header)
                offsets.append(at)
    return np.array(offsets, np.uint64), fault


def _index_path(source: ByteSource) -> Path:
    return cache_folder() / "indexes" / f"{source.key}.{source.path.name}.index"


def _load_index(source: ByteSource) -> NDArray[np.uint64] | None:
    try:
        content = read_untrusted(_index_path(source), most=_MOST_INDEX_BYTES)
        head, _, body = content.partition(b"\n")
        stored = json.loads(head)
    except (OSError, ValueError, RecursionError):
        return None
    if stored != _index_head(source, body) or len(body) % 8:
        return None
    offsets = np.frombuffer(body, "<u8")
    # The cache is not trusted, as the records are not.
    rising = len(offsets) and np.all(offsets[1:] > offsets[:-1])
    return offsets if rising and offsets[0] == 0 and offsets[-1] <= source.size else None


def _index_head(source: ByteSource, body: bytes) -> dict[str, object]:
    return {"format": _FORMAT, **source.identity, "crc32c": crc32c(body)}


def _save_index(source: ByteSource, offsets: NDArray[np.uint64]) -> None:
    body = offsets.astype("<u8").tobytes()
    content = json.dumps(_index_head(source, body)).encode() + b"\n" + body
    # Reading works without an index.
    with suppress(UserError):
        write_whole(_index_path(source), content)
