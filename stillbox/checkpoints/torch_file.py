"""Reads what PyTorch's `torch.save` writes (`.pth`, `.pt`), without PyTorch."""

from functools import lru_cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from stillbox.checkpoints.lazy_arrays import LazyArrays
from stillbox.checkpoints.torch_archives import DamagedFileError, open_archive
from stillbox.checkpoints.torch_pickle import ForbiddenCallError, Tensor, named_tensors
from stillbox.errors import UserError

_SAVE = "torch.save(model.state_dict(), 'weights.pth')"


class TorchFile(LazyArrays[Tensor]):
    """The tensors of a file by name; keys of nested dictionaries are joined by dots.

    No code in the file is run.

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

    def _read(self, name: str, entry: Tensor) -> np.ndarray:
        try:
            return _view(entry, self._read_storage(entry.storage))
        # zipfile, too.
        except Exception as error:
            raise _damage(self._path, error) from error


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
    # `make_tensor` has checked that the view stays inside of the storage.
    return np.lib.stride_tricks.as_strided(numbers, tensor.shape, strides, writeable=False)


def _damage(path: Path, error: Exception) -> UserError:
    reason = str(error) or type(error).__name__
    what = f"the file is damaged, truncated or not from torch.save: {reason}"
    return UserError(what, where=str(path), fix="copy the file again")
