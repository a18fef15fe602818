"""Arrays in files: read on access, as `.npz` or `.safetensors`, and checked to be finite.

The `.npz` are our own checkpoints and exported weights. `.safetensors` is a format of PyTorch
models that holds no code: eight bytes with the length of the header, the header as JSON, the
values of all tensors. They are read and not mapped: if a mapped file is cut, SIGBUS ends the
process. Source: huggingface.co/docs/safetensors, "Format".

A model with weights that are not finite detects nothing and raises no error, hence the check.
"""

import json
import math
import os
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax.numpy as jnp
import numpy as np

from stillbox.checkpoints.files import MAX_WEIGHTS_BYTES, damage_of
from stillbox.errors import UserError
from stillbox.records.files import create_file
from stillbox.untrusted import open_untrusted, open_zip


class Shaped(Protocol):
    """What an array is read by: its place in a file, and its shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the array claims to have."""


ArrayEntry = TypeVar("ArrayEntry", bound=Shaped)
# Weights hardly shrink; zlib compresses zeros 1,000 times.
_MOST_COMPRESSION = 100


class LazyArrays(Mapping[str, np.ndarray], Generic[ArrayEntry]):
    """The arrays of a file by name. Only access by name reads values."""

    def __init__(self, entries: Mapping[str, ArrayEntry]) -> None:
        self.entries = entries

    @abstractmethod
    def _read(self, name: str, entry: ArrayEntry) -> np.ndarray:
        """Returns one array, which may be read-only and not contiguous."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape that an array claims to have; nothing is read."""
        return self.entries[name].shape

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read(name, self.entries[name])

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def check_unpacked(claimed: int, held: int) -> None:
    """Raises `ValueError` if all arrays have over a hundred times the bytes of their file."""
    if claimed > _MOST_COMPRESSION * held:
        raise ValueError(f"it unpacks to more than {_MOST_COMPRESSION} times of its size")


MOST_AXES = 32
"""Greatest number of axes of an array, as in NumPy 1."""


def count_of(shape: Sequence[int]) -> int:
    """Returns the number of values of a shape that a file states.

    Raises:
        ValueError: it has too many axes, or an impossible length of one. Numbers that grow with
            each of a million axes would take minutes.
    """
    if len(shape) > MOST_AXES:
        raise ValueError(f"an array has {len(shape):,} axes")
    if not all(isinstance(axis, int) and 0 <= axis <= MAX_WEIGHTS_BYTES for axis in shape):
        raise ValueError("an array has an impossible shape")
    return math.prod(shape)


# numpy's format has no bfloat16: its bits are stored as uint16 under a marked name.
_BFLOAT16 = ":bfloat16"
_FIX = "copy the file again, or write it with numpy.savez"
# The kinds of numpy's types that weights can have.
_KINDS = "biuf"
# Characters of the type and shape of an array, which are read as Python; usual ones have 60.
_MOST_NPY_HEADER = 1000


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays durably, uncompressed, each with a CRC-32. Same arrays, same bytes."""
    with create_file(path) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                if array.dtype == jnp.bfloat16:
                    name, array = name + _BFLOAT16, array.view(np.uint16)
                # Unlike `ZipFile.write`, `open` stores a fixed date.
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


class _Member(NamedTuple):
    """Place, type and shape of an array."""

    info: zipfile.ZipInfo
    dtype: np.dtype
    shape: tuple[int, ...]
    is_bfloat16: bool


class NpzFile(LazyArrays[_Member]):
    """The arrays of a file by name; their headers are read at once, values and CRC-32 on access.

    `check` gets the open file first, and leaves it at its beginning. `rename` returns the name of
    an array by that in the file.

    Raises:
        UserError: the file is damaged, of another format, or claims more than it can hold.
    """

    def __init__(
        self,
        path: Path,
        *,
        inside: Path | None = None,
        check: Callable[[BufferedReader], None] = lambda file: None,
        rename: Callable[[str], str] = str,
    ) -> None:
        self._path = path
        file = open_untrusted(path, most=MAX_WEIGHTS_BYTES, fix=_FIX, inside=inside)
        try:
            check(file)
        except BaseException:
            file.close()
            raise
        size = os.fstat(file.fileno()).st_size
        with self._damaged():
            self._archive = open_zip(file)
            claimed = sum(info.file_size for info in self._archive.infolist())
            check_unpacked(claimed, size)
            if claimed > MAX_WEIGHTS_BYTES:
                raise ValueError(f"it unpacks to more than {MAX_WEIGHTS_BYTES:,} bytes")
            members = [_read_header(self._archive, info) for info in self._archive.infolist()]
        super().__init__({rename(_name(member.info)): member for member in members})

    def describe(self, name: str) -> str:
        """Returns type and shape that an array claims to have; nothing is read."""
        member = self.entries[name]
        return f"{'bfloat16' if member.is_bfloat16 else member.dtype}{list(member.shape)}"

    def _read(self, name: str, entry: _Member) -> np.ndarray:
        if entry.dtype.kind not in _KINDS:
            problem = f"{name!r} cannot be read: type {entry.dtype} is not supported"
            raise UserError(problem, where=str(self._path))
        with self._damaged(), self._archive.open(entry.info) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
        return array.view(jnp.bfloat16) if entry.is_bfloat16 else array

    @contextmanager
    def _damaged(self) -> Iterator[None]:
        try:
            yield
        # zipfile, zlib and numpy can raise anything at broken bytes.
        except Exception as error:
            problem = f"the file is damaged or no .npz of plain arrays: {damage_of(error)}"
            raise UserError(problem, where=str(self._path), fix=_FIX) from error


def _name(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(".npy").removesuffix(_BFLOAT16)


def _read_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    """Reads the header of an array and compares it with the file."""
    with archive.open(info) as file:
        if file.read(6) != b"\x93NUMPY":
            raise ValueError(f"{info.filename} is no array")
        version = tuple(file.read(2))
        header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else (np.lib.format.read_array_header_2_0)
        )
        shape, _, dtype = header(file, max_header_size=_MOST_NPY_HEADER)
        held = info.file_size - file.tell()
    marked = info.filename.removesuffix(".npy").endswith(_BFLOAT16)
    true = count_of(shape) * dtype.itemsize == held
    if dtype.hasobject or not true or (marked and dtype != np.uint16):
        raise ValueError(f"{info.filename} claims to hold {dtype} of shape {list(shape)}")
    return _Member(info, dtype, shape, marked)


def read_npz_weights(path: Path) -> NpzFile:
    """Opens exported weights by their names in TensorFlow; `|` stands for a slash.

    Raises:
        UserError: as `NpzFile`.
    """
    return NpzFile(path, rename=lambda name: name.replace("|", "/").removesuffix(":0"))


_DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16,
    "U32": np.uint32, "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16,
    "BF16": jnp.bfloat16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip
_LENGTH_BYTES = 8
# A tensor takes about a hundred bytes of it.
_MOST_HEADER_BYTES = 2**24


class _StoredTensor(NamedTuple):
    """Type, shape and place of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile(LazyArrays[_StoredTensor]):
    """The tensors of a file by name; `metadata` are the texts of its header by name.

    Raises:
        UserError: the file is damaged, or of another format.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with open_untrusted(path, most=MAX_WEIGHTS_BYTES) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            try:
                if length > min(size - _LENGTH_BYTES, _MOST_HEADER_BYTES):
                    raise ValueError(f"its header claims {length:,} bytes")
                header = json.loads(file.read(length))
                self.metadata = _texts(header.pop("__metadata__", {}))
                places = _places(header, _LENGTH_BYTES + length, size)
            # JSON of other types than the format's can raise several kinds.
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                problem = f"the file is damaged or no .safetensors: {damage_of(error)}"
                raise UserError(problem, where=str(path), fix="copy the file again") from error
        super().__init__(places)

    def _read(self, name: str, entry: _StoredTensor) -> np.ndarray:
        if entry.dtype not in _DTYPES:
            problem = f"{name!r} cannot be read: type {entry.dtype} is not supported"
            raise UserError(problem, where=str(self._path))
        with open_untrusted(self._path, most=MAX_WEIGHTS_BYTES) as file:
            file.seek(entry.start)
            data = file.read(entry.end - entry.start)
        try:
            return np.frombuffer(data, _DTYPES[entry.dtype]).reshape(entry.shape)
        except ValueError as error:
            problem = f"{name!r} is not as long as its shape {list(entry.shape)} says"
            fix = "copy the file again: it is damaged, or was cut off after it was opened"
            raise UserError(problem, where=str(self._path), fix=fix) from error


def _texts(metadata: dict[str, str]) -> dict[str, str]:
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata are no texts")
    return metadata


def _places(header: dict[str, Any], start: int, size: int) -> dict[str, _StoredTensor]:
    """Returns the tensors of a header; the values begin at byte `start` of the file."""
    places = {
        name: _StoredTensor(
            str(entry["dtype"]),
            tuple(entry["shape"]),
            *(start + at for at in entry["data_offsets"]),
        )
        for name, entry in header.items()
    }
    end = start
    for name, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].end)):
        numbers = (*place.shape, place.start, place.end)
        sound = all(isinstance(number, int) and number >= 0 for number in numbers)
        if not sound or place.start != end or place.end < end:
            raise ValueError(f"{name!r} has no place of its own")
        if place.dtype in _DTYPES:
            expected = count_of(place.shape) * np.dtype(_DTYPES[place.dtype]).itemsize
            if expected != place.end - place.start:
                raise ValueError(f"{name!r} is not as long as its shape says")
        end = place.end
    if end != size:
        raise ValueError(f"it should have {end:,} bytes and has {size:,}")
    return places


_SHOWN = 3


def check_finite(arrays: Mapping[str, np.ndarray], where: str) -> None:
    """Raises `UserError` for NaN, infinities, and values that float32 cannot hold."""
    bad = {name: count for name, array in arrays.items() if (count := _count(array))}
    if not bad:
        return
    (first, count), *rest = bad.items()
    others = ", ".join(list(bad)[1 : 1 + _SHOWN])
    more = f" and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else ""
    also = f"; so have {others}{more}" if rest else ""
    raise UserError(
        f"{first!r} has {count:,} of {arrays[first].size:,} values that are not finite{also}",
        where=where,
        fix="take weights from before the training diverged: an earlier checkpoint, or another "
        "file",
    )


def _count(array: np.ndarray) -> int:
    """Counts the values that are not finite as float32."""
    # Whole numbers are finite, and numpy counts bfloat16 to the kind V.
    if array.dtype.kind not in "fV":
        return 0
    with np.errstate(over="ignore", invalid="ignore"):
        single = array.astype(np.float32) if array.dtype == np.float64 else array
    return int(array.size - np.count_nonzero(np.isfinite(single)))
