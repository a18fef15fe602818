"""Reads the pickles inside PyTorch's files, and runs nothing that they ask for.

A pickle is a program that may call any function of any module. The ones that `torch.save` writes
call a dozen at most to put tensors together; those are done here, and everything else is refused
by name.
"""

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, NamedTuple

# Type of the numbers by torch's name of it. Strings can neither be called nor changed.
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
    """Numbers in one row, which several tensors may share."""

    key: str
    """Where in the file they lie."""
    dtype: str
    """Name of the numpy type."""
    size: int
    """How many numbers the file holds under this key."""
    offset: int = 0
    """The first of them, where this is only a part."""


class Tensor(NamedTuple):
    """A view of a storage; offset and strides count numbers, not bytes."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class ForbiddenCallError(Exception):
    """A pickle asks for something that weights do not need."""


def load_pickle(file: IO[bytes], resolve: Callable[[Any], object] | None = None) -> Any:  # noqa: ANN401
    """Reads one pickle, and leaves the file behind it.

    Args:
        file: at the start of the pickle.
        resolve: returns what a reference to something outside of the pickle stands for.

    Returns:
        What was saved, with a `Tensor` for each tensor.

    Raises:
        ForbiddenCallError: it names a function or class other than those of tensors.
        Exception: of any kind, if it is damaged.
    """
    return _Unpickler(file, resolve).load()


def resolve_storage(reference: Any) -> Storage:  # noqa: ANN401
    """Returns the storage that a pickle since PyTorch 0.1.9 refers to."""
    kind, dtype, key, _, size, *view = reference
    if kind != "storage" or dtype not in _DTYPES.values():
        raise pickle.UnpicklingError(f"{reference!r} is no storage")
    # Old files have storages that are parts of others: name, offset and size of the part.
    offset = view[0][1] if view and view[0] else 0
    return Storage(str(key), dtype, int(size), int(offset))


def make_tensor(
    storage: Storage, offset: int, shape: Iterable[int], strides: Iterable[int]
) -> Tensor:
    """Returns a tensor that stays inside of its storage: strides decide which memory is read."""
    tensor = Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))
    shape, strides, first = tensor.shape, tensor.strides, storage.offset + tensor.offset
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    behind = first if 0 in shape else first + sum(steps) + 1
    if min(0, storage.offset, tensor.offset, *shape, *strides) < 0 or behind > storage.size:
        raise pickle.UnpicklingError(f"a tensor of {list(shape)} reaches beyond its storage")
    return tensor


def named_tensors(saved: object) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors in nested dictionaries; keys are joined by dots."""
    # Each dictionary once: a hostile file may put one inside of itself.
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
            # dict's own method, because a file can give an OrderedDict another one.
            waiting += [(f"{prefix}{key}", item) for key, item in reversed(dict.items(value))]


class _Parameter:
    """A tensor to train, as PyTorch up to 0.3 saved it."""

    def __init__(self, data: object = None, *_: object) -> None:
        self.data = data

    def __setstate__(self, state: tuple[object, ...]) -> None:
        # The oldest have five values, the tensor first; later ones hold none here.
        if len(state) == 5:
            self.data = state[0]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], resolve: Callable[[Any], object] | None) -> None:
        super().__init__(file, encoding="utf-8")
        self._resolve = resolve
        # A pickle can set attributes of what it is given; of these it can set none that matter.
        self._allowed = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "Size"): tuple,
            ("torch._utils", "_rebuild_tensor"): self._rebuild_tensor,
            ("torch._utils", "_rebuild_tensor_v2"): self._rebuild_tensor,
            ("torch._utils", "_rebuild_parameter"): self._rebuild_parameter,
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
            raise pickle.UnpicklingError("a reference where there should be none")
        return self._resolve(pid)

    def _rebuild_tensor(
        self, storage: Storage, offset: int, shape: list[int], strides: list[int], *_: object
    ) -> Tensor:
        if not isinstance(storage, Storage):
            raise pickle.UnpicklingError("a tensor is put together of something else")
        return make_tensor(storage, offset, shape, strides)

    def _rebuild_parameter(self, tensor: Tensor, *_: object) -> Tensor:
        return tensor
