"""Reads `.safetensors`, the format in which PyTorch models are published without any code."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from stillbox.errors import UserError


class SafetensorsFile(Mapping[str, np.ndarray]):
    """The tensors of a file by name. Values are read when they are asked for.

    Args:
        path: of the file.

    Raises:
        UserError: the file is damaged, or is something else under that name.
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
        self._names = frozenset(self._file.keys())

    def __getitem__(self, name: str) -> np.ndarray:
        """Reads one tensor.

        Raises:
            KeyError: there is no such tensor.
            UserError: its type is one that numpy has no counterpart of.
        """
        if name not in self._names:
            raise KeyError(name)
        try:
            array: np.ndarray = self._file.get_tensor(name)
        except (SafetensorError, TypeError, AttributeError) as error:
            raise UserError(f"{name!r} cannot be read: {error}", where=str(self._path)) from error
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._names)
