"""Unpickles PyTorch's files without running code from them.

A pickle may call any function of any module. Those of `torch.save` need a dozen to build tensors;
these have substitutes here, and every other one is refused by name.
"""

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, NamedTuple

# numpy's type by torch's. Strings, because a pickle can neither call nor change them.
_DTYPES = {
    "BFloat16": "bfloat16",
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "Int": "int32",
    "Long": "int64",
    "Short": "int16",
}


class Storage(NamedTuple):
    """A one-dimensional buffer that several tensors may share."""

    key: str
    """Of the bytes in the file."""
    dtype: str
    """Name of the numpy type."""
    size: int
    """Number of elements under the key."""
    offset: int = 0
    """First element, of a part of another storage."""


class Tensor(NamedTuple):
    """A view of a storage; offset and strides count elements, not bytes."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class ForbiddenCallError(Exception):
    """A pickle names a function or class that tensors do not need."""


def load_pickle(file: IO[bytes], resolve: Callable[[Any], object] | None = None) -> Any:  # noqa: ANN401
    """Reads one pickle and leaves the file at its end.

    Args:
        file: at the start of the pickle.
        resolve: returns the object of a persistent id.

    Returns:
        The saved object, with a `Tensor` for each tensor.

    Raises:
        ForbiddenCallError: it names a function or class that tensors do not need.
        Exception: of any kind, if it is damaged.
    """
    return _Unpickler(file, resolve).load()


def resolve_storage(reference: Any) -> Storage:  # noqa: ANN401
    """Returns the storage of a persistent id, as pickled since PyTorch 0.1.9."""
    kind, dtype, key, _, size, *view = reference
    if kind != "storage" or dtype not in _DTYPES.values():
        raise pickle.UnpicklingError(f"{reference!r} is no storage")
    # In old files a storage may be part of another: name, offset and size of the part.
    offset = view[0][1] if view and view[0] else 0
    return Storage(str(key), dtype, int(size), int(offset))


def make_tensor(
    storage: object, offset: int, shape: Iterable[int], strides: Iterable[int], *_: object
) -> Tensor:
    """Returns a tensor, checking that its strides stay inside of the storage."""
    if not isinstance(storage, Storage):
        raise pickle.UnpicklingError("a tensor without a storage")
    tensor = Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))
    shape, strides, first = tensor.shape, tensor.strides, storage.offset + tensor.offset
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    behind = first if 0 in shape else first + sum(steps) + 1
    if min(0, storage.offset, tensor.offset, *shape, *strides) < 0 or behind > storage.size:
        raise pickle.UnpicklingError(f"a tensor of {list(shape)} reaches beyond its storage")
    return tensor


def named_tensors(saved: object) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors in nested dictionaries; keys are joined by dots."""
    # Each dictionary once: a hostile file may nest one in itself.
    seen: set[int] = set()
    waiting = [("", saved)]
    while waiting:
        name, value = waiting.pop()
        value = value.data if isinstance(value, _Parameter) else value
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, dict) and id(value) not in seen:
            seen.add(id(value))
            prefix = f"{name}." if name else ""
            # dict's own method: a pickle can override it on an OrderedDict.
            waiting += [(f"{prefix}{key}", item) for key, item in reversed(dict.items(value))]


class _Parameter:
    """A parameter as PyTorch up to 0.3 saved it."""

    def __init__(self, data: object = None, *_: object) -> None:
        self.data = data

    def __setstate__(self, state: tuple[object, ...]) -> None:
        # The oldest have five values, the tensor first; later ones have none here.
        if len(state) == 5:
            self.data = state[0]


def _rebuild_parameter(tensor: Tensor, *_: object) -> Tensor:
    return tensor


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], resolve: Callable[[Any], object] | None) -> None:
        super().__init__(file, encoding="utf-8")
        self._resolve = resolve
        # A pickle can set attributes of these objects; none of them matters.
        self._allowed = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "Size"): tuple,
            ("torch._utils", "_rebuild_tensor"): make_tensor,
            ("torch._utils", "_rebuild_tensor_v2"): make_tensor,
            ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
            ("torch.nn.parameter", "Parameter"): _Parameter,
        }
        for name, dtype in _DTYPES.items():
            self._allowed["torch", f"{name}Storage"] = dtype
            self._allowed["torch", f"{name}Tensor"] = dtype

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        if (module, name) not in self._allowed:
            raise ForbiddenCallError(f"{module}.{name}")
        return self._allowed[module, name]

    def persistent_load(self, pid: Any) -> Any:  # noqa: ANN401
        if self._resolve is None:
            raise pickle.UnpicklingError("an unexpected persistent id")
        return self._resolve(pid)
