"""Writes TFRecord files, one or a set of numbered shards; `index.RecordFile` reads them.

A file is written under a temporary name and renamed when it is complete, so that a process that is
killed leaves no half-written file behind.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from stillbox.errors import UserError
from stillbox.printing import size_text
from stillbox.records.files import create_file, not_written
from stillbox.records.framing import frame
from stillbox.records.new_folder import partial_folder

ShardNames = Literal["record", "tfrecord"]
"""`record`: `train.record-00000-of-00010`, as the Object Detection API's converters have it;
`tfrecord`: `train-00000-of-00010.tfrecord`, as those of tpu/models and MLPerf."""
_PARTIAL = ".partial"


@contextmanager
def tfrecord_writer(path: str | Path) -> Iterator[Callable[[bytes], None]]:
    """Yields a function that appends a record to a new file.

    The file appears at the end of the context, and not at all after an exception.

    Raises:
        UserError: the disk does not take it, because it is full for example.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}{_PARTIAL}")
    with _removed_on_error([partial], path), create_file(partial) as file:
        yield lambda payload: _append(file, payload)
    partial.replace(path)


@contextmanager
def sharded_writer(
    folder: str | Path,
    name: str,
    shards: int = 1,
    *,
    names: ShardNames = "record",
    overwrite: bool = False,
) -> Iterator[Callable[[bytes], None]]:
    """Yields a function that appends a record to the next of a set of numbered files, in turn.

    All shards get their names together, at the end of the context; after an exception, none does
    and an older set stays. A shard that would stay empty is not written, and the count in the names
    is of those that were.

    Raises:
        UserError: a set of this name exists and `overwrite` is off, another process writes it,
            `shards` is below 1, or the disk does not take the files, as one that is full.
    """
    folder = Path(folder)
    old = prepare_folder(folder, name, shards, overwrite=overwrite)
    records = 0
    with partial_folder(folder / name) as unnamed:
        partial = [unnamed / f"{shard:05d}" for shard in range(shards)]
        with _removed_on_error(partial, folder / name), ExitStack() as stack:
            files = [stack.enter_context(path.open("wb")) for path in partial]

            def write(payload: bytes) -> None:
                nonlocal records
                _append(files[records % shards], payload)
                records += 1

            yield write
        for path in old:
            path.unlink(missing_ok=True)
        name_shards(partial[:records], folder, name, names)


@contextmanager
def _removed_on_error(paths: Sequence[Path], target: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # Errors of other files, such as images that are read, have their names or no number.
        full = None
        if isinstance(error, OSError) and error.errno and error.filename is None:
            written = sum(path.stat().st_size for path in paths if path.exists())
            needs = f"the records so far took {size_text(written)}"
            full = not_written(target, error, needs)
        for path in paths:
            path.unlink(missing_ok=True)
        if full is not None:
            raise full from error
        raise


def _append(file: BinaryIO, payload: bytes) -> None:
    file.write(frame(payload))


def prepare_folder(folder: Path, name: str, shards: int, *, overwrite: bool) -> list[Path]:
    """Makes the folder of a set and returns the older shards that the set will replace.

    Raises:
        UserError: there are some and `overwrite` is off, `shards` is below 1, or the name is not
            that of a file.
    """
    if not name or name[0] == "." or set(name) & set("/\\*?[]\0"):
        raise UserError(
            f"{name!r} is not the name of a set",
            where="--name",
            fix="give a plain name such as train; --output names the folder",
        )
    if shards < 1:
        raise UserError(f"{shards} shards cannot hold a record", fix="use 1 or more")
    folder.mkdir(parents=True, exist_ok=True)
    old = shard_files(folder, name)
    if old and not overwrite:
        raise UserError(
            f"there is a set of this name already: {old[0].name}"
            + (f" and {len(old) - 1} more" if len(old) > 1 else ""),
            where=str(folder),
            fix="choose another name or --output, or replace the set with --overwrite",
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
