"""Reads TF1 checkpoints (format V2: `.index` and `.data-00000-of-00001`) without TensorFlow.

TF2's checkpoints, and the variables of a SavedModel, are files of the same form.
"""

import math
import os
import struct
from pathlib import Path

import numpy as np

from stillbox.checkpoints.files import MAX_WEIGHTS_BYTES
from stillbox.checkpoints.lazy_arrays import LazyArrays
from stillbox.checkpoints.tf1_index import STRING, BundleEntry, read_index
from stillbox.errors import UserError
from stillbox.records.crc32c import masked_crc32c
from stillbox.records.wire import read_varint
from stillbox.untrusted import open_untrusted, read_untrusted

# A variable takes about a hundred bytes of it.
_MOST_INDEX_BYTES = 2**24


class Tf1Checkpoint(LazyArrays[BundleEntry]):
    """The variables of a checkpoint by name; values are read and verified on access.

    Args:
        prefix: path without `.index`, as `model.ckpt-1000`.

    Raises:
        UserError: there is no index, or it is damaged.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        index = Path(f"{prefix}.index")
        if not index.is_file():
            raise UserError("this checkpoint has no index", where=str(index))
        try:
            content = read_untrusted(index, most=_MOST_INDEX_BYTES)
            self._shards, entries = read_index(content)
        except ValueError as error:
            raise UserError(
                f"the index cannot be read: {error}", where=str(index), fix="copy the file again"
            ) from error
        super().__init__(entries)

    def read_text(self, name: str) -> bytes:
        """Returns a variable that is one text.

        Its checksum covers the length as four bytes, the checksum of these, which follows the
        length in the file, and the text.

        Raises:
            UserError: it is missing, damaged, or no text.
        """
        entry = self.entries[name]
        if entry.dtype_number != STRING or entry.shape:
            raise UserError(f"the variable {name!r} is no text", where=self.prefix)
        path, data = self._read_bytes(name, entry)
        try:
            length, start = read_varint(data, 0)
            covered = struct.pack("<I", length) + data[start:]
        except (IndexError, struct.error):
            length, start, covered = 0, 0, b""
        if start + 4 + length != len(data) or masked_crc32c(covered) != entry.checksum:
            raise _damaged(name, path)
        return data[start + 4 :]

    def _read(self, name: str, entry: BundleEntry) -> np.ndarray:
        if entry.dtype is None or entry.sliced:
            kind = "is partitioned" if entry.sliced else f"has type number {entry.dtype_number}"
            raise UserError(
                f"the variable {name!r} {kind}, which is not supported", where=self.prefix
            )
        path, data = self._read_bytes(name, entry, math.prod(entry.shape) * entry.dtype.itemsize)
        if masked_crc32c(data) != entry.checksum:
            raise _damaged(name, path)
        try:
            return np.frombuffer(data, entry.dtype).reshape(entry.shape)
        except (ValueError, OverflowError) as error:  # no value, and axes of any length
            raise UserError(
                f"the variable {name!r} has an impossible shape", where=self.prefix
            ) from error

    def _read_bytes(
        self, name: str, entry: BundleEntry, expected: int | None = None
    ) -> tuple[Path, bytes]:
        """Returns the data file, and the bytes of a variable in it."""
        path = Path(f"{self.prefix}.data-{entry.shard:05d}-of-{self._shards:05d}")
        if not path.exists():
            raise UserError(
                "the checkpoint's data file is missing",
                where=str(path),
                fix=f"copy it to where {Path(self.prefix).name}.index lies",
            )
        with open_untrusted(path, most=MAX_WEIGHTS_BYTES) as file:
            # A damaged index may name any place and any size.
            available = max(0, os.fstat(file.fileno()).st_size - entry.offset)
            file.seek(entry.offset if available else 0)
            data = file.read(min(entry.size, available))
        expected = entry.size if expected is None else expected
        if len(data) != entry.size or entry.size != expected:
            raise UserError(
                f"{name!r} should have {expected} bytes and has {len(data)}",
                where=str(path),
                fix="copy the file again: it is cut off, or belongs to another index",
            )
        return path, data


def _damaged(name: str, path: Path) -> UserError:
    what = f"the values of {name!r} are damaged: their checksum is wrong"
    return UserError(what, where=str(path), fix="copy the file again")
