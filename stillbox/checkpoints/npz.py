"""Reads and writes arrays as `.npz`: our own checkpoints, and exported weights."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from stillbox.errors import UserError

# numpy's format has no bfloat16: its bits are stored as uint16 under a marked name.
_BFLOAT16 = ":bfloat16"


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays durably, uncompressed, each with a CRC-32. Same arrays, same bytes."""
    with path.open("wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                if array.dtype == jnp.bfloat16:
                    name, array = name + _BFLOAT16, array.view(np.uint16)
                # Names carry a fixed date, unlike those of `ZipFile.write`.
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Reads all arrays of a file and verifies their CRC-32.

    Raises:
        UserError: the file is damaged, or of another format.
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    array = np.lib.format.read_array(member, allow_pickle=False)
                name = name.removesuffix(".npy")
                if name.endswith(_BFLOAT16):
                    name, array = name.removesuffix(_BFLOAT16), array.view(jnp.bfloat16)
                arrays[name] = array
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, OSError) as error:
        raise UserError(
            f"the file is damaged or no .npz of plain arrays: {error}",
            where=str(path),
            fix="copy the file again, or write it with numpy.savez",
        ) from error
    return arrays


def read_npz_weights(path: Path) -> dict[str, np.ndarray]:
    """Reads exported weights by their names in TensorFlow.

    `|` in a name stands for a slash, which file systems do not allow; a tensor's `:0` is dropped.

    Raises:
        UserError: as `read_npz`.
    """
    return {
        name.replace("|", "/").removesuffix(":0"): array for name, array in read_npz(path).items()
    }
