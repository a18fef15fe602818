"""TFRecord files as a stream: writing, also in shards, and reading from front to back.

Random access is `index.RecordFile`. A file is written under a temporary name and gets its own only
when it is complete, so that a process that is killed leaves no half-written file behind.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self, get_args

from stillbox.errors import UserError
from stillbox.records.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    PAYLOAD_FAULT,
    REPAIR,
    RecordError,
    frame,
    header_fault,
    is_header,
    length_fault,
    payload_is_sound,
    payload_length,
    record_place,
)

Compression = Literal["none", "gzip"]
ShardNames = Literal["record", "tfrecord"]
"""`record`: `train.record-00000-of-00010`, as the Object Detection API's converters have it;
`tfrecord`: `train-00000-of-00010.tfrecord`, as those of tpu/models and MLPerf."""
GZIP_MAGIC = b"\x1f\x8b\x08"
BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
GZIP_FAULT = "the gzip stream breaks off or is damaged from here on"
PARTIAL = ".partial"


def is_gzip(first_bytes: bytes) -> bool:
    """Tells a gzip file from a plain one by its first 12 bytes.

    A record of 559,903 bytes starts like gzip too, but then the checksum of the length is right.
    """
    return first_bytes.startswith(GZIP_MAGIC) and not is_header(first_bytes)


class TFRecordWriter:
    """Writes one file; it appears under its name on `close`, and not at all after an exception.

    Args:
        path: the final name.
        compression: `gzip` for the whole file. Such files cost a decompression before they can be
            read in random order; JPEG does not get smaller by it.
    """

    def __init__(self, path: str | Path, compression: Compression = "none") -> None:
        self.path = Path(path)
        self.partial = self.path.with_name(f".{self.path.name}{PARTIAL}")
        self.records = 0
        # mtime 0: the same records give the same bytes.
        self._raw = self.partial.open("wb")
        self._stream: BinaryIO | gzip.GzipFile = (
            gzip.GzipFile(filename="", mode="wb", fileobj=self._raw, mtime=0)
            if compression == "gzip"
            else self._raw
        )

    def write(self, payload: bytes) -> None:
        """Appends one record."""
        self._stream.write(frame(payload))
        self.records += 1

    def finish(self) -> None:
        """Completes the file under its temporary name."""
        if self._stream is not self._raw:
            self._stream.close()
        self._raw.close()

    def close(self) -> None:
        """Completes the file and gives it its name."""
        self.finish()
        self.partial.replace(self.path)

    def discard(self) -> None:
        """Removes what was written so far."""
        self.finish()
        self.partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class ShardedWriter:
    """Writes a set of numbered files, record by record in turn.

    All shards get their names together, on `close`. A shard that would stay empty is not written,
    and the count in the names is of those that were.

    Args:
        folder: where the shards go; made if absent.
        name: the set, as `train`.
        shards: how many, at least 1.
        names: what the files are called.
        compression: as for `TFRecordWriter`.
        overwrite: replace an older set of this name; otherwise it is refused.

    Raises:
        UserError: the set exists already, or `shards` is below 1.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str,
        shards: int = 1,
        *,
        names: ShardNames = "record",
        compression: Compression = "none",
        overwrite: bool = False,
    ) -> None:
        self.folder, self.name, self._names = Path(folder), name, names
        self._old = prepare_folder(self.folder, name, shards, overwrite=overwrite)
        for leftover in self.folder.glob(f".{name}.record-*{PARTIAL}"):
            leftover.unlink()
        self._writers = [
            TFRecordWriter(self.folder / f"{name}.record-{shard:05d}", compression)
            for shard in range(shards)
        ]
        self.records = 0
        self.files: list[Path] = []
        """The set, in order, once it is complete."""

    def write(self, payload: bytes) -> None:
        """Appends one record to the shard whose turn it is."""
        self._writers[self.records % len(self._writers)].write(payload)
        self.records += 1

    def close(self) -> None:
        """Completes the set and gives its files their names."""
        used = [writer for writer in self._writers if writer.records]
        for writer in self._writers:
            writer.finish()
            if not writer.records:
                writer.partial.unlink()
        for old in self._old:
            old.unlink(missing_ok=True)
        partial = [writer.partial for writer in used]
        self.files = name_shards(partial, self.folder, self.name, self._names)

    def discard(self) -> None:
        """Removes what was written so far; an older set stays as it is."""
        for writer in self._writers:
            writer.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def prepare_folder(folder: Path, name: str, shards: int, *, overwrite: bool) -> list[Path]:
    """Makes the folder of a set and returns the older shards that the set will replace.

    Raises:
        UserError: there are some, which `overwrite` does not allow, or `shards` is below 1.
    """
    if shards < 1:
        raise UserError(f"{shards} shards cannot hold a record", fix="use 1 or more")
    folder.mkdir(parents=True, exist_ok=True)
    old = shard_files(folder, name)
    if old and not overwrite:
        raise UserError(
            f"there is a set of this name already: {old[0].name}"
            + (f" and {len(old) - 1} more" if len(old) > 1 else ""),
            where=str(folder),
            fix="choose another --name or --output, or replace the set with --overwrite",
        )
    return old


def name_shards(complete: Sequence[Path], folder: Path, name: str, names: ShardNames) -> list[Path]:
    """Gives complete files the names of a set, in their order, and returns these."""
    count = f"{len(complete):05d}"
    return [
        file.replace(folder / shard_name(name, f"{shard:05d}", count, names))
        for shard, file in enumerate(complete)
    ]


def shard_name(name: str, shard: str, shards: str, names: ShardNames) -> str:
    """Returns the name of a file of a set; the two numbers have five digits or stand for any."""
    if names == "record":
        return f"{name}.record-{shard}-of-{shards}"
    return f"{name}-{shard}-of-{shards}.tfrecord"


def shard_files(folder: Path, name: str) -> list[Path]:
    """Returns the finished shards of a set, in order, whatever rule named them."""
    number = 5 * "[0-9]"
    return sorted(
        path
        for names in get_args(ShardNames)
        for path in folder.glob(shard_name(name, number, number, names))
    )


def read_records(path: str | Path) -> Iterator[bytes]:
    """Yields the payloads of a file from front to back, checking every checksum. Gzip is seen.

    Raises:
        RecordError: a damaged or truncated record, with file, record number and byte offset.
    """
    path = Path(path)
    with path.open("rb") as raw:
        compressed = is_gzip(raw.read(HEADER_BYTES))
        raw.seek(0)
        if not compressed:
            yield from _read_stream(raw.read, path)
            return
        with gzip.GzipFile(fileobj=raw, mode="rb") as plain:
            yield from _read_stream(plain.read, path)


def _read_stream(read: Callable[[int], bytes], path: Path) -> Iterator[bytes]:
    record = offset = 0
    while True:
        place = record_place(path, record, offset)
        try:
            header = read(HEADER_BYTES)
            length = payload_length(header) if is_header(header) else 0
            body = read(length + FOOTER_BYTES)
        except BROKEN_GZIP as error:
            raise RecordError(GZIP_FAULT, where=place, fix=REPAIR) from error
        if not header:
            return
        if not is_header(header):
            raise RecordError(header_fault(header, record), where=place, fix=REPAIR)
        if len(body) < length + FOOTER_BYTES:
            raise RecordError(length_fault(length, len(body)), where=place, fix=REPAIR)
        if not payload_is_sound(body[:length], body[length:]):
            raise RecordError(PAYLOAD_FAULT, where=place, fix=REPAIR)
        yield body[:length]
        record, offset = record + 1, offset + len(header) + len(body)
