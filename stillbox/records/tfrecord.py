"""TFRecord files: the frame of a record, its checksum, and the writers of files and of shards.

A frame is u64 length, u32 masked CRC-32C of these 8 bytes, the payload, u32 masked CRC-32C of the
payload; all little-endian. Source: tensorflow.org, "TFRecord and tf.train.Example". TF1
checkpoints have the same checksum. google-crc32c computes several GB/s. The best form in numpy
reaches 130 MB/s, less than an input pipeline reads.

A file is written under a temporary name and renamed when it is complete: a process that is killed
leaves no half-written file behind. `record_file.RecordFile` reads the files.
"""

import errno
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import BinaryIO, Literal, get_args

import google_crc32c

from stillbox.errors import UserError
from stillbox.printing import count_text, size_text
from stillbox.records.file_list import claim_files, refuse_others
from stillbox.records.files import create_file, not_written, partial_folder, replace_file
from stillbox.references import Parameter

_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) of `data`."""
    return int(google_crc32c.value(data))


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum rotated right by 15 bits, plus a constant (tensorflow/core/lib/hash).

    The mask keeps the checksum of data that contains checksums from being degenerate.
    """
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


HEADER_BYTES = 12
FRAME_BYTES = HEADER_BYTES + 4
MAX_RECORD_BYTES = 2**30
"""Greatest size of a record: the largest image file, twice."""

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")

# Files that are given by mistake, by their first bytes.
_LOOKALIKES = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: run `git lfs pull`",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"PK\x03\x04": "a zip archive",
    b"{": "JSON text: convert it with `stillbox data convert coco`",
    b"[": "JSON text: convert it with `stillbox data convert coco`",
    b"<": "XML text: convert it with `stillbox data convert voc`",
    b"item": "a label map, which belongs into `label_map`",
}


class RecordError(UserError):
    """A record that cannot be read out of its file; `where` names file, record and byte."""


DROP_RECORDS = "set data.bad_records=drop"
"""How a run leaves bad records out."""


def record_error(fault: str, where: str, drop: str = DROP_RECORDS) -> RecordError:
    """Returns the error for a fault of a record; `drop` is how bad records are left out."""
    fix = f"copy or convert the file again, or {drop} to go on without it"
    return RecordError(fault, where=where, fix=fix)


def record_location(path: PurePath, record: int, offset: int) -> str:
    """Returns the description of a record in messages; records are counted from 0."""
    return f"{path}: record {record} (byte {offset})"


def frame(payload: bytes) -> bytes:
    """Returns `payload` as it is stored, with its length and both checksums."""
    length = _LENGTH.pack(len(payload))
    checksums = _CRC.pack(masked_crc32c(length)), _CRC.pack(masked_crc32c(payload))
    return b"".join((length, checksums[0], payload, checksums[1]))


def unframe(framed: bytes) -> bytes | None:
    """Returns the payload of a framed record, None if a checksum is wrong."""
    payload, footer = framed[HEADER_BYTES : -_CRC.size], framed[-_CRC.size :]
    sound = len(framed) >= FRAME_BYTES and is_header(framed[:HEADER_BYTES])
    return payload if sound and footer == _CRC.pack(masked_crc32c(payload)) else None


def is_header(header: bytes) -> bool:
    """Tells whether 12 bytes are the start of a record, by the checksum of the length."""
    return len(header) == HEADER_BYTES and header[8:] == _CRC.pack(masked_crc32c(header[:8]))


def payload_length(header: bytes) -> int:
    """Returns the payload's length from the first 12 bytes of a record."""
    return int(_LENGTH.unpack(header[:8])[0])


def header_fault(header: bytes, available: int, *, first: bool) -> str:
    """Returns what is wrong with a record's first bytes, nothing if they are sound.

    The header has 12 bytes, or fewer at the end of the file; `available` bytes follow from its
    start. The first record may reveal a file of another type.
    """
    if not is_header(header):
        for start, name in _LOOKALIKES.items() if first else ():
            if header.startswith(start[:HEADER_BYTES]):
                return f"this is not a TFRecord file but {name}"
        if len(header) < HEADER_BYTES:
            left_over = count_text(len(header), "byte")
            return f"the file is truncated: {left_over} after the last whole record"
        if first:
            return "this is not a TFRecord file: the checksum of the first record's length is wrong"
        return "the checksum of the record's length is wrong: the file is damaged from here on"
    length, left = payload_length(header), available - HEADER_BYTES
    if length > MAX_RECORD_BYTES:
        return f"the record claims {length:,} bytes; one has {MAX_RECORD_BYTES:,} at most"
    if length + _CRC.size > left:
        needs = count_text(length, "byte")
        return f"the file is truncated: the record needs {needs} of {left} that are left"
    return ""


ShardNames = Literal["record", "tfrecord"]
"""`record`: `train.record-00000-of-00010`, as written by the Object Detection API;
`tfrecord`: `train-00000-of-00010.tfrecord`, as written by tpu/models and MLPerf."""
_PARTIAL = ".partial"


@contextmanager
def tfrecord_writer(path: str | Path) -> Iterator[Callable[[bytes], None]]:
    """Yields a function that appends a record to a file, which appears at the end or never.

    Raises:
        UserError: the disk does not take it, because it is full for example.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}{_PARTIAL}")
    with _removed_on_error([partial], path):
        with create_file(partial) as file:
            yield lambda payload: _append(file, payload)
        replace_file(partial, path)


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
    and an older set stays. Empty shards are neither written nor counted in the names.

    Raises:
        UserError: a set of this name exists and `overwrite` is off, another process writes it,
            `shards` is below 1 or more than the process may open, or the disk does not take the
            files, as one that is full.
    """
    folder = Path(folder)
    old = prepare_folder(folder, name, shards, overwrite=overwrite)
    records = 0
    with partial_folder(folder / name) as unnamed:
        partial = [unnamed / f"{shard:05d}" for shard in range(shards)]
        with _removed_on_error(partial, folder / name), ExitStack() as stack:
            files = _opened(partial, stack)

            def write(payload: bytes) -> None:
                nonlocal records
                _append(files[records % shards], payload)
                records += 1

            yield write
        count = f"{min(records, shards):05d}"
        new = [shard_name(name, f"{shard:05d}", count, names) for shard in range(int(count))]
        claim_files(folder, new)
        for path in old:
            path.unlink(missing_ok=True)
        for complete, shard in zip(partial, new, strict=False):
            complete.replace(folder / shard)


def _opened(paths: Sequence[Path], stack: ExitStack) -> list[BinaryIO]:
    try:
        return [stack.enter_context(path.open("wb")) for path in paths]
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        problem = f"{len(paths):,} shards are more files than this process may open"
        raise UserError(problem, where="shards", fix="write fewer, or `ulimit -n` more") from None


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
        UserError: there are some and `overwrite` is off, or stillbox did not write one of them,
            `shards` is below 1, or the name is no file name.
    """
    if not name or name[0] == "." or set(name) & set("/\\*?[]\0"):
        fix = f"give a plain name such as train; {Parameter('output')} names the folder"
        raise UserError(f"{name!r} is not the name of a set", where=Parameter("name"), fix=fix)
    if shards < 1:
        raise UserError(f"{shards} shards cannot hold a record", fix="use 1 or more")
    folder.mkdir(parents=True, exist_ok=True)
    old = shard_files(folder, name)
    if old and not overwrite:
        raise UserError(
            f"there is a set of this name already: {old[0].name}"
            + (f" and {len(old) - 1} more" if len(old) > 1 else ""),
            where=str(folder),
            fix=f"choose another name or {Parameter('output')}, or replace the set with "
            f"{Parameter('overwrite')}",
        )
    refuse_others(folder, [path.name for path in old])
    return old


def shard_files(folder: Path, name: str) -> list[Path]:
    """Returns the complete shards of a set, in order, with names of either pattern."""
    number = 5 * "[0-9]"
    patterns = [shard_name(name, number, number, names) for names in get_args(ShardNames)]
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def shard_name(name: str, shard: str, shards: str, names: ShardNames) -> str:
    """Returns the name of a file of a set; the numbers have five digits or are glob patterns."""
    if names == "record":
        return f"{name}.record-{shard}-of-{shards}"
    return f"{name}-{shard}-of-{shards}.tfrecord"
