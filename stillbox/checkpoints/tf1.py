"""Reads TF1 checkpoints (format V2: `.index` and `.data-00000-of-00001`) without TensorFlow."""

import math
from pathlib import Path

import numpy as np

from stillbox.checkpoints.lazy_arrays import LazyArrays
from stillbox.checkpoints.tf1_index import BundleEntry, read_index
from stillbox.errors import UserError
from stillbox.records.crc32c import masked_crc32c


class Tf1Checkpoint(LazyArrays[BundleEntry]):
    """The variables of a checkpoint by name; values are read and verified on access.

    Args:
        prefix: path without `.index`, as `model.ckpt-1000`.

    Raises:
        UserError: there is no index, or it is damaged.
    """

    def __init__(self, prefix: str | Path) -> None:
        self._prefix = str(prefix)
        index = Path(f"{prefix}.index")
        if not index.is_file():
            raise UserError("this checkpoint has no index", where=str(index))
        try:
            self._shards, entries = read_index(index.read_bytes())
        except ValueError as error:
            raise UserError(
                f"the index cannot be read: {error}", where=str(index), fix="copy the file again"
            ) from error
        super().__init__(entries)

    def _read(self, name: str, entry: BundleEntry) -> np.ndarray:
        if entry.dtype is None or entry.sliced:
            kind = "is partitioned" if entry.sliced else f"has type number {entry.dtype_number}"
            raise UserError(
                f"the variable {name!r} {kind}, which is not supported", where=self._prefix
            )
        data = self._read_bytes(name, entry, math.prod(entry.shape) * entry.dtype.itemsize)
        try:
            return np.frombuffer(data, entry.dtype).reshape(entry.shape)
        except (ValueError, OverflowError) as error:  # no value, and axes of any length
            raise UserError(
                f"the variable {name!r} has an impossible shape", where=self._prefix
            ) from error

    def _read_bytes(self, name: str, entry: BundleEntry, expected: int) -> bytes:
        path = Path(f"{self._prefix}.data-{entry.shard:05d}-of-{self._shards:05d}")
        try:
            with path.open("rb") as file:
                # A damaged index may name any place and any size.
                available = max(0, path.stat().st_size - entry.offset)
                file.seek(entry.offset if available else 0)
                data = file.read(min(entry.size, available))
        except FileNotFoundError:
            raise UserError(
                "the checkpoint's data file is missing",
                where=str(path),
                fix=f"copy it to where {Path(self._prefix).name}.index lies",
            ) from None
        if len(data) != entry.size or entry.size != expected:
            raise UserError(
                f"{name!r} should have {expected} bytes and has {len(data)}",
                where=str(path),
                fix="copy the file again: it is cut off, or belongs to another index",
            )
        if masked_crc32c(data) != entry.checksum:
            what = f"the values of {name!r} are damaged: their checksum is wrong"
            raise UserError(what, where=str(path), fix="copy the file again")
        return data
