"""Reads the three file formats of PyTorch's `torch.save` (`.pth`, `.pt`), without PyTorch.

Each has a pickle and the bytes of its storages: a zip archive since PyTorch 1.6 (as torchvision's
`resnet34-b627a593.pth`); a sequence of pickles followed by the storages since 0.1.9; a tar
archive before that (as `resnet34-333f7ec4.pth`). `torch_pickle.py` reads the pickles.
"""

import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from functools import lru_cache, partial
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from stillbox.checkpoints.array_files import LazyArrays
from stillbox.checkpoints.files import MAX_WEIGHTS_BYTES, damage_of
from stillbox.checkpoints.torch_pickle import (
    MOST_AXES,
    ForbiddenCallError,
    Storage,
    StridedView,
    load_pickle,
    make_tensor,
    named_tensors,
    resolve_storage,
)
from stillbox.errors import UserError
from stillbox.untrusted import open_untrusted, open_zip

_ZIP_START = b"PK\x03\x04"
_TAR_MARK, _TAR_MARK_AT = b"ustar", 257
# The first two pickles of a sequence.
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_PIECE_BYTES = 2**22
_BIG_ENDIAN = "its numbers are big-endian, which is not supported"


class DamagedFileError(Exception):
    """The file is not in a format of `torch.save`."""


class Archive(NamedTuple):
    """The content of a file."""

    saved: Any
    """The saved object, with a `StridedView` for each tensor."""
    read: Callable[[Storage], bytes]
    """Returns all bytes of the storage with the same key."""


def open_archive(path: Path) -> Archive:
    """Opens a file of any of the three formats.

    Raises:
        ForbiddenCallError: the pickle calls a function that tensors do not need.
        Exception: of any kind, if it is damaged.
    """
    with _open(path) as file:
        start = file.read(512)
    if start.startswith(_ZIP_START):
        return _open_zip(path)
    if start.startswith(_TAR_MARK, _TAR_MARK_AT):
        return _open_tar(path)
    return _open_pickles(path)


def _open(path: Path) -> BufferedReader:
    return open_untrusted(path, most=MAX_WEIGHTS_BYTES)


def _open_zip(path: Path) -> Archive:
    file = _open(path)
    most = os.fstat(file.fileno()).st_size
    # torch does not compress members, so that none is larger than the file.
    archive = open_zip(file, methods=(zipfile.ZIP_STORED,))
    names = archive.namelist()
    root = next((name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")), "")
    if not root:
        raise DamagedFileError("the archive has no data.pkl")
    if any(member.file_size > most for member in archive.infolist()):
        raise DamagedFileError("a member is larger than the archive")
    if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
        raise DamagedFileError(_BIG_ENDIAN)

    def read(storage: Storage) -> bytes:
        try:
            info = archive.getinfo(f"{root}data/{storage.key}")
        except KeyError as error:
            raise DamagedFileError(f"storage {storage.key} is missing") from error
        with archive.open(info) as member:
            # Without a size, it puts pieces together in quadratic time.
            return b"".join(iter(partial(member.read, _PIECE_BYTES), b""))

    pickled = archive.read(f"{root}data.pkl")
    return Archive(load_pickle(io.BytesIO(pickled), resolve_storage), read)


def _open_pickles(path: Path) -> Archive:
    storages: dict[str, Storage] = {}

    def resolve(reference: object) -> Storage:
        storage = resolve_storage(reference)
        storages[storage.key] = storage
        return storage

    with _open(path) as file:
        if (load_pickle(file), load_pickle(file)) != (_MAGIC, _PROTOCOL):
            raise DamagedFileError("it does not begin as files of torch.save")
        if not load_pickle(file)["little_endian"]:
            raise DamagedFileError(_BIG_ENDIAN)
        saved, keys = load_pickle(file, resolve), load_pickle(file)
        places = {key: _skip_numbers(file, storages[key].dtype) for key in map(_key, keys)}
    return Archive(saved, _reader(path, places))


def _open_tar(path: Path) -> Archive:
    with _open(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
        storages, places = _tar_storages(archive)
        tensors = _tar_tensors(archive, storages)
        referred: dict[int, Storage | StridedView] = {**storages, **tensors}
        saved = load_pickle(_member(archive, "pickle"), lambda key: referred[int(key)])
    return Archive(saved, _reader(path, places))


def _tar_storages(
    archive: tarfile.TarFile,
) -> tuple[dict[int, Storage], dict[str, tuple[int, int]]]:
    """Returns the storages by number, and position and size of their bytes in the archive."""
    file, start = _member(archive, "storages"), archive.getmember("storages").offset_data
    storages, places = {}, {}
    for _ in range(load_pickle(file)):
        number, _, dtype = load_pickle(file)
        position, size = _skip_numbers(file, dtype)
        count = size // jnp.dtype(dtype).itemsize
        storages[int(number)] = Storage(str(number), dtype, count)
        places[str(number)] = start + position, size
    for number, whole, offset, _ in load_pickle(file):
        storages[int(number)] = storages[int(whole)]._replace(offset=int(offset))
    return storages, places


def _tar_tensors(archive: tarfile.TarFile, storages: dict[int, Storage]) -> dict[int, StridedView]:
    file = _member(archive, "tensors")
    tensors = {}
    for _ in range(load_pickle(file)):
        number, storage, _ = load_pickle(file)
        # Four bytes of the number of axes, and four zeros.
        (axes,) = struct.unpack("<q", file.read(8))
        if not 0 <= axes <= MOST_AXES:
            raise DamagedFileError(f"a tensor has {axes} axes")
        *numbers, offset = struct.unpack(f"<{2 * axes + 1}q", file.read(8 * (2 * axes + 1)))
        shape, strides = numbers[:axes], numbers[axes:]
        tensors[int(number)] = make_tensor(storages[int(storage)], offset, shape, strides)
    return tensors


def _key(value: object) -> str:
    if not isinstance(value, str | int):
        raise DamagedFileError("a storage has no name")
    return str(value)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    if file is None:
        raise DamagedFileError(f"{name} is no file")
    return file


def _skip_numbers(file: IO[bytes], dtype: str) -> tuple[int, int]:
    """Skips a storage that begins with its length; returns position and size of its bytes."""
    (count,) = struct.unpack("<q", file.read(8))
    position, size = file.tell(), count * jnp.dtype(dtype).itemsize
    if count < 0 or file.seek(0, io.SEEK_END) < position + size:
        raise DamagedFileError("numbers are cut off")
    file.seek(position + size)
    return position, size


def _reader(path: Path, places: dict[str, tuple[int, int]]) -> Callable[[Storage], bytes]:
    def read(storage: Storage) -> bytes:
        position, size = places[storage.key]
        with _open(path) as file:
            file.seek(position)
            return file.read(size)

    return read


_SAVE = "torch.save(model.state_dict(), 'weights.pth')"


class TorchFile(LazyArrays[StridedView]):
    """The tensors of a file by name, with dots between nested keys; no code in the file is run.

    Raises:
        UserError: the file is damaged, of another format, holds no tensors, or needs code to run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            archive = open_archive(path)
            super().__init__(dict(named_tensors(archive.saved)))
        except ForbiddenCallError as error:
            raise UserError(
                f"the file asks to run {error}, which weights do not need; nothing was run",
                where=str(path),
                fix="give the weights as .safetensors; or, if you trust the file, let PyTorch read "
                f"it once and save nothing but tensors: {_SAVE}",
            ) from error
        # Unpickling arbitrary bytes can raise anything.
        except Exception as error:
            raise _damage(path, error) from error
        if not self.entries:
            fix = f"save the weights with {_SAVE}"
            raise UserError("the file holds no tensors under names", where=str(path), fix=fix)
        # Tensors that share a storage mostly follow one another.
        self._read_storage = lru_cache(maxsize=1)(archive.read)

    def _read(self, name: str, entry: StridedView) -> np.ndarray:
        try:
            return _view(entry, self._read_storage(entry.storage))
        # zipfile, too.
        except Exception as error:
            raise _damage(self._path, error) from error


def _view(tensor: StridedView, data: bytes) -> np.ndarray:
    dtype, storage = jnp.dtype(tensor.storage.dtype), tensor.storage
    if len(data) != storage.size * dtype.itemsize:
        raise DamagedFileError(
            f"storage {storage.key} should have {storage.size * dtype.itemsize} bytes and has "
            f"{len(data)}"
        )
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, dtype)
    numbers = np.frombuffer(data, dtype)[storage.offset + tensor.offset :]
    strides = tuple(step * dtype.itemsize for step in tensor.strides)
    # `make_tensor` has checked that the view stays inside of the storage.
    return np.lib.stride_tricks.as_strided(numbers, tensor.shape, strides, writeable=False)


def _damage(path: Path, error: Exception) -> UserError:
    problem = f"the file is damaged, truncated or not from torch.save: {damage_of(error)}"
    return UserError(problem, where=str(path), fix="copy the file again")
