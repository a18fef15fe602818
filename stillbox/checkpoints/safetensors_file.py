"""Reads `.safetensors`, a format of PyTorch models that holds no code."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from stillbox.checkpoints.lazy_arrays import LazyArrays
from stillbox.errors import UserError


class SafetensorsFile(LazyArrays[None]):
    """The tensors of a file by name.

    Raises:
        UserError: the file is damaged, or of another format.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = safe_open(str(path), framework="numpy")
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"the file is damaged or no .safetensors: {error}",
                where=str(path),
                fix="copy the file again",
            ) from error
        super().__init__(dict.fromkeys(self._file.keys()))

    def _read(self, name: str, entry: None) -> np.ndarray:
        try:
            array: np.ndarray = self._file.get_tensor(name)
        except (SafetensorError, TypeError, AttributeError) as error:
            raise UserError(f"{name!r} cannot be read: {error}", where=str(self._path)) from error
        return array
