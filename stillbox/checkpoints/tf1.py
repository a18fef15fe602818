"""Reads TF1 checkpoints (format V2: `.index` and `.data-00000-of-00001`) without TensorFlow."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stillbox.checkpoints.tf1_bundle import BundleEntry, parse_entry, parse_header
from stillbox.checkpoints.tf1_table import read_table
from stillbox.errors import UserError
from stillbox.records.crc32c import masked_crc32c

# The header is the entry with the empty key; it sorts before every name.
_HEADER_KEY = b""


@dataclass(frozen=True)
class Variable:
    """One variable of a checkpoint, without its values."""

    name: str
    """Name in the graph, parts separated by `/`."""
    shape: tuple[int, ...]
    """Length of every axis."""
    dtype: np.dtype | None
    """Type of the elements; None for what is no array of numbers."""


class Tf1Checkpoint(Mapping[str, np.ndarray]):
    """The variables of a checkpoint by name. Values are read when they are asked for.

    Args:
        prefix: path without `.index`, as `model.ckpt-1000`.

    Raises:
        UserError: there is no index, or it is damaged.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        index = Path(self.prefix + ".index")
        if not index.is_file():
            raise UserError("this checkpoint has no index", where=str(index))
        try:
            table = read_table(index.read_bytes())
            self._shards = parse_header(table.pop(_HEADER_KEY, b""))
            self._entries = {key.decode(): parse_entry(value) for key, value in table.items()}
        except ValueError as error:
            raise UserError(
                f"the index cannot be read: {error}", where=str(index), fix="copy the file again"
            ) from error

    def __getitem__(self, name: str) -> np.ndarray:
        """Reads one variable.

        Returns:
            A read-only array.

        Raises:
            KeyError: there is no such variable.
            UserError: the data file is missing, too short or damaged, or the variable is of a
                kind that is not supported.
        """
        entry = self._entries[name]
        if entry.dtype is None or entry.sliced:
            kind = "is partitioned" if entry.sliced else f"has type number {entry.dtype_number}"
            raise UserError(
                f"the variable {name!r} {kind}, which is not supported", where=self.prefix
            )
        data = self._read_bytes(name, entry)
        return np.frombuffer(data, entry.dtype).reshape(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """What the index lists, in the order of the names; reads no values."""
        return tuple(
            Variable(name, entry.shape, entry.dtype) for name, entry in self._entries.items()
        )

    def _read_bytes(self, name: str, entry: BundleEntry) -> bytes:
        path = Path(f"{self.prefix}.data-{entry.shard:05d}-of-{self._shards:05d}")
        try:
            with path.open("rb") as file:
                file.seek(entry.offset)
                data = file.read(entry.size)
        except FileNotFoundError:
            raise UserError(
                "the checkpoint's data file is missing",
                where=str(path),
                fix=f"copy it to where {Path(self.prefix).name}.index lies",
            ) from None
        expected = math.prod(entry.shape) * entry.dtype.itemsize if entry.dtype else 0
        if len(data) != entry.size or entry.size != expected:
            raise UserError(
                f"{name!r} should have {expected} bytes and has {len(data)}",
                where=str(path),
                fix="copy the file again: it is cut off, or belongs to another index",
            )
        if masked_crc32c(data) != entry.checksum:
            raise UserError(
                f"the values of {name!r} are damaged: their checksum is wrong",
                where=str(path),
                fix="copy the file again",
            )
        return data


def read_tf1_checkpoint(prefix: str | Path) -> Tf1Checkpoint:
    """Opens a checkpoint.

    Args:
        prefix: path without `.index`, as `model.ckpt-1000`.

    Returns:
        Its variables by name; values are read, and their checksums verified, on access.

    Raises:
        UserError: see `Tf1Checkpoint`.
    """
    return Tf1Checkpoint(prefix)


def list_variables(prefix: str | Path) -> tuple[Variable, ...]:
    """Returns names, shapes and types; the data files need not be there."""
    return Tf1Checkpoint(prefix).variables
