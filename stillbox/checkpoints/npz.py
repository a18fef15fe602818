"""Reads and writes arrays as `.npz`: our own checkpoints, and exported weights."""

import math
import os
import zipfile
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from stillbox.checkpoints.files import MAX_WEIGHTS_BYTES
from stillbox.errors import UserError
from stillbox.records.files import create_file
from stillbox.untrusted import open_untrusted

# numpy's format has no bfloat16: its bits are stored as uint16 under a marked name.
_BFLOAT16 = ":bfloat16"
# Of an array to the file's size. Weights hardly shrink; 1,000 is what zlib makes of zeros.
_MOST_COMPRESSION = 100


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays durably, uncompressed, each with a CRC-32. Same arrays, same bytes."""
    with create_file(path) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                if array.dtype == jnp.bfloat16:
                    name, array = name + _BFLOAT16, array.view(np.uint16)
                # Names carry a fixed date, unlike those of `ZipFile.write`.
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def read_npz(
    path: Path,
    *,
    inside: Path | None = None,
    check: Callable[[BufferedReader], None] = lambda file: None,
) -> dict[str, np.ndarray]:
    """Reads all arrays of a file and verifies their CRC-32.

    Args:
        path: the file.
        inside: see `open_untrusted`.
        check: is given the open file first, and leaves it at its beginning.

    Raises:
        UserError: the file is damaged, or of another format.
    """
    fix = "copy the file again, or write it with numpy.savez"
    with open_untrusted(path, most=MAX_WEIGHTS_BYTES, fix=fix, inside=inside) as file:
        check(file)
        try:
            return _read_arrays(file)
        # zipfile, zlib and numpy can raise anything at broken bytes.
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise UserError(
                f"the file is damaged or no .npz of plain arrays: {reason}",
                where=str(path),
                fix=fix,
            ) from error


def _read_arrays(file: BufferedReader) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(file) as archive:
        members, size = archive.infolist(), os.fstat(file.fileno()).st_size
        if sum(member.file_size for member in members) > _MOST_COMPRESSION * size:
            raise ValueError(f"it unpacks to more than {_MOST_COMPRESSION} times of its size")
        if sum(member.file_size for member in members) > MAX_WEIGHTS_BYTES:
            raise ValueError(f"it unpacks to more than {MAX_WEIGHTS_BYTES:,} bytes")
        for member in members:
            name, array = member.filename.removesuffix(".npy"), _read_array(archive, member)
            if name.endswith(_BFLOAT16):
                name, array = name.removesuffix(_BFLOAT16), array.view(jnp.bfloat16)
            arrays[name] = array
    return arrays


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Reads an array after its header, which numpy allocates memory by, is known to be true."""
    with archive.open(member) as file:
        if file.read(6) != b"\x93NUMPY":
            raise ValueError(f"{member.filename} is no array")
        version = tuple(file.read(2))
        header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else (np.lib.format.read_array_header_2_0)
        )
        shape, _, dtype = header(file)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(f"{member.filename} claims to hold {dtype} of shape {list(shape)}")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def read_npz_weights(path: Path) -> dict[str, np.ndarray]:
    """Reads exported weights by their names in TensorFlow.

    `|` in a name stands for a slash, which file systems do not allow; a tensor's `:0` is dropped.

    Raises:
        UserError: as `read_npz`.
    """
    return {
        name.replace("|", "/").removesuffix(":0"): array for name, array in read_npz(path).items()
    }
