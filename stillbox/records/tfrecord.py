"""Writes TFRecord files, one or a set of numbered shards; `index.RecordFile` reads them.

A file is written under a temporary name and renamed when it is complete, so that a process that is
killed leaves no half-written file behind.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

from stillbox.errors import UserError
from stillbox.records.framing import frame

ShardNames = Literal["record", "tfrecord"]
"""`record`: `train.record-00000-of-00010`, as the Object Detection API's converters have it;
`tfrecord`: `train-00000-of-00010.tfrecord`, as those of tpu/models and MLPerf."""
_PARTIAL = ".partial"


class _Transaction:
    """A context that ends with `close`, or with `discard` after an exception."""

    def close(self) -> None:
        raise NotImplementedError

    def discard(self) -> None:
        raise NotImplementedError

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


class TFRecordWriter(_Transaction):
    """Writes one file; it appears under its name on `close`, and not at all after an exception."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.partial = self.path.with_name(f".{self.path.name}{_PARTIAL}")
        self.records = 0
        self.file = self.partial.open("wb")

    def write(self, payload: bytes) -> None:
        """Appends one record."""
        self.file.write(frame(payload))
        self.records += 1

    def close(self) -> None:
        """Completes the file and renames it."""
        self.file.close()
        self.partial.replace(self.path)

    def discard(self) -> None:
        """Removes what was written so far."""
        self.file.close()
        self.partial.unlink(missing_ok=True)


class ShardedWriter(_Transaction):
    """Writes a set of numbered files, record by record in turn.

    All shards get their names together, on `close`. A shard that would stay empty is not written,
    and the count in the names is of those that were.

    Raises:
        UserError: a set of this name exists and `overwrite` is off, or `shards` is below 1.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str,
        shards: int = 1,
        *,
        names: ShardNames = "record",
        overwrite: bool = False,
    ) -> None:
        self._folder, self._name, self._names = Path(folder), name, names
        self._old = prepare_folder(self._folder, name, shards, overwrite=overwrite)
        for leftover in self._folder.glob(f".{name}.record-*{_PARTIAL}"):
            leftover.unlink()
        files = [self._folder / f"{name}.record-{shard:05d}" for shard in range(shards)]
        self._writers = [TFRecordWriter(file) for file in files]
        self._records = 0
        self.files: list[Path] = []
        """The set, in order, once it is complete."""

    def write(self, payload: bytes) -> None:
        """Appends one record to the next shard in turn."""
        self._writers[self._records % len(self._writers)].write(payload)
        self._records += 1

    def close(self) -> None:
        """Completes the set and renames its files."""
        used = [writer for writer in self._writers if writer.records]
        for writer in self._writers:
            if writer.records:
                writer.file.close()
            else:
                writer.discard()
        for old in self._old:
            old.unlink(missing_ok=True)
        partial = [writer.partial for writer in used]
        self.files = name_shards(partial, self._folder, self._name, self._names)

    def discard(self) -> None:
        """Removes what was written so far; an older set stays as it is."""
        for writer in self._writers:
            writer.discard()


def prepare_folder(folder: Path, name: str, shards: int, *, overwrite: bool) -> list[Path]:
    """Makes the folder of a set and returns the older shards that the set will replace.

    Raises:
        UserError: there are some and `overwrite` is off, or `shards` is below 1.
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


def shard_files(folder: Path, name: str) -> list[Path]:
    """Returns the complete shards of a set, in order, with names of either pattern."""
    number = 5 * "[0-9]"
    patterns = [shard_name(name, number, number, names) for names in get_args(ShardNames)]
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def name_shards(complete: Sequence[Path], folder: Path, name: str, names: ShardNames) -> list[Path]:
    """Gives complete files the names of a set, in their order, and returns these."""
    count = f"{len(complete):05d}"
    return [
        file.replace(folder / shard_name(name, f"{shard:05d}", count, names))
        for shard, file in enumerate(complete)
    ]


def shard_name(name: str, shard: str, shards: str, names: ShardNames) -> str:
    """Returns the name of a file of a set; the numbers have five digits or are glob patterns."""
    if names == "record":
        return f"{name}.record-{shard}-of-{shards}"
    return f"{name}-{shard}-of-{shards}.tfrecord"
