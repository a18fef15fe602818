"""Reads `.safetensors`, a format of PyTorch models that holds no code.

Eight bytes with the length of the header, the header as JSON, the values of all tensors. They are
read and not mapped: a mapped file that is cut ends the process with SIGBUS.
Source: huggingface.co/docs/safetensors, "Format".
"""

import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from stillbox.checkpoints.files import MAX_WEIGHTS_BYTES
from stillbox.checkpoints.lazy_arrays import LazyArrays
from stillbox.errors import UserError
from stillbox.untrusted import open_untrusted

_DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16,
    "U32": np.uint32, "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16,
    "BF16": jnp.bfloat16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip
_LENGTH_BYTES = 8
# A tensor takes about a hundred bytes of it.
_MOST_HEADER_BYTES = 2**24


class _Place(NamedTuple):
    """Type, shape and place of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile(LazyArrays[_Place]):
    """The tensors of a file by name.

    `metadata` are the texts of its header by name.

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
                raise UserError(
                    f"the file is damaged or no .safetensors: {error}",
                    where=str(path),
                    fix="copy the file again",
                ) from error
        super().__init__(places)

    def _read(self, name: str, entry: _Place) -> np.ndarray:
        if entry.dtype not in _DTYPES:
            what = f"{name!r} cannot be read: type {entry.dtype} is not supported"
            raise UserError(what, where=str(self._path))
        with open_untrusted(self._path, most=MAX_WEIGHTS_BYTES) as file:
            file.seek(entry.start)
            data = file.read(entry.end - entry.start)
        try:
            return np.frombuffer(data, _DTYPES[entry.dtype]).reshape(entry.shape)
        except ValueError as error:
            what = f"{name!r} is not as long as its shape {list(entry.shape)} says"
            fix = "copy the file again: it is damaged, or was cut off after it was opened"
            raise UserError(what, where=str(self._path), fix=fix) from error


def _texts(metadata: dict[str, str]) -> dict[str, str]:
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata are no texts")
    return metadata


def _places(header: dict[str, Any], start: int, size: int) -> dict[str, _Place]:
    """Returns the tensors of a header, whose values begin at byte `start` of a file.

    Raises:
        ValueError: values lie outside of the file, or are shared.
    """
    places = {
        name: _Place(
            str(entry["dtype"]),
            tuple(entry["shape"]),
            *(start + at for at in entry["data_offsets"]),
        )
        for name, entry in header.items()
    }
    end = start
    for name, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].end)):
        axes_sound = all(isinstance(axis, int) and axis >= 0 for axis in place.shape)
        if not axes_sound or place.start != end or place.end < end:
            raise ValueError(f"{name!r} has no place of its own")
        if place.dtype in _DTYPES:
            expected = math.prod(place.shape) * np.dtype(_DTYPES[place.dtype]).itemsize
            if expected != place.end - place.start:
                raise ValueError(f"{name!r} is not as long as its shape says")
        end = place.end
    if end != size:
        raise ValueError(f"it should have {end:,} bytes and has {size:,}")
    return places
