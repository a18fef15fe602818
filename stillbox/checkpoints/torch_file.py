"""Reads what PyTorch's `torch.save` writes (`.pth`, `.pt`), without PyTorch."""

import zipfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from stillbox.checkpoints.torch_archives import DamagedFileError, open_archive
from stillbox.checkpoints.torch_pickle import ForbiddenCallError, Tensor, named_tensors
from stillbox.errors import UserError


class TorchFile(Mapping[str, np.ndarray]):
    """The tensors of a file by name, those of nested dictionaries with their keys joined by dots.

    Names and shapes are read at once, values when they are asked for. Nothing that the file asks to
    run is run.

    Args:
        path: of the file.

    Raises:
        UserError: the file is damaged, is something else under that name, holds no tensors, or
            asks to run something.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            archive = open_archive(path)
            self._tensors = dict(named_tensors(archive.saved))
        except ForbiddenCallError as error:
            raise _refusal(path, str(error)) from error
        # A pickle that is none can fail in every way that Python knows.
        except Exception as error:
            raise _damage(path, error) from error
        if not self._tensors:
            raise UserError(
                "the file holds no tensors under names",
                where=str(path),
                fix="save the weights with torch.save(model.state_dict(), 'weights.pth')",
            )
        # Tensors that share a storage mostly follow one another.
        self._read = lru_cache(maxsize=1)(archive.read)

    def __getitem__(self, name: str) -> np.ndarray:
        """Reads one tensor.

        Returns:
            A read-only array, which need not be contiguous.

        Raises:
            KeyError: there is no such tensor.
            UserError: its values are damaged.
        """
        tensor = self._tensors[name]
        try:
            return _view(tensor, self._read(tensor.storage))
        except (DamagedFileError, zipfile.BadZipFile, OSError) as error:
            raise _damage(self._path, error) from error

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _view(tensor: Tensor, data: bytes) -> np.ndarray:
    """Returns a tensor as a view of its storage's bytes."""
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
    # `make_tensor` has seen to it that the view stays inside of the storage.
    return np.lib.stride_tricks.as_strided(numbers, tensor.shape, strides, writeable=False)


def _refusal(path: Path, call: str) -> UserError:
    return UserError(
        f"the file asks to run {call}, which weights do not need; nothing was run",
        where=str(path),
        fix="give the weights as .safetensors; or, if you trust the file, let PyTorch read it once "
        "and save nothing but tensors: torch.save(model.state_dict(), 'weights.pth')",
    )


def _damage(path: Path, error: Exception) -> UserError:
    return UserError(
        f"the file is damaged, cut off or not one of torch.save: {error or type(error).__name__}",
        where=str(path),
        fix="copy the file again",
    )
