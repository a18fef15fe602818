"""Unpickles PyTorch's files without running code from them.

A pickle may call any function of any module. The pickles of `torch.save` need a dozen to build
tensors; this module has substitutes for these, and refuses every other one by name. It uses
Python's unpickler, because the one in C allocates what a file asks for before it has read it.
"""

import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import IO, Any, ClassVar, NamedTuple

# numpy's type by torch's. Strings, because a pickle can neither call nor change them.
_DTYPES = {
    "BFloat16": "bfloat16", "Bool": "bool", "Byte": "uint8", "Char": "int8", "Double": "float64",
    "Float": "float32", "Half": "float16", "Int": "int32", "Long": "int64", "Short": "int16",
}  # fmt: skip


class Storage(NamedTuple):
    """A one-dimensional buffer that several tensors may share."""

    key: str
    """Names the bytes in the file."""
    dtype: str
    """Name of the numpy type."""
    size: int
    """Number of elements under the key."""
    offset: int = 0
    """First element, of a part of another storage."""


class StridedView(NamedTuple):
    """A view of a storage; offset and strides count elements, not bytes."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


MOST_AXES = 32
"""Greatest number of axes of a tensor."""
_MOST_NUMBER = 2**63
# How often a tensor may repeat one number, as PyTorch's `expand` does.
_MOST_REPEATS = 1000
# Characters of all names together. Dictionaries may share a key of megabytes.
_MOST_NAMES = 2**24


class ForbiddenCallError(Exception):
    """A pickle names a function or class that tensors do not need."""


def load_pickle(file: IO[bytes], resolve: Callable[[Any], object] | None = None) -> Any:  # noqa: ANN401
    """Reads one pickle, with a `StridedView` for each tensor, and leaves the file at its end.

    `resolve` returns the object of a persistent id.

    Raises:
        ForbiddenCallError: it names a function or class that tensors do not need.
        Exception: of any kind, if it is damaged.
    """
    return _Unpickler(file, resolve).load()


def resolve_storage(reference: Any) -> Storage:  # noqa: ANN401
    """Returns the storage of a persistent id, as pickled since PyTorch 0.1.9."""
    kind, dtype, key, _, size, *view = reference
    if kind != "storage" or dtype not in _DTYPES.values() or not isinstance(key, str | int):
        raise pickle.UnpicklingError("a reference to something other than a storage")
    # In old files a storage may be part of another: name, offset and size of the part.
    offset = view[0][1] if view and view[0] else 0
    return Storage(str(key), dtype, *_whole(size, offset))


def make_tensor(
    storage: object, offset: object, shape: object, strides: object, *_: object
) -> StridedView:
    """Returns a tensor, checking that its strides stay inside of the storage."""
    if not isinstance(storage, Storage):
        raise pickle.UnpicklingError("a tensor without a storage")
    (first,) = _whole(offset)
    tensor = StridedView(storage, first, _whole(*_axes(shape)), _whole(*_axes(strides)))
    shape, strides, first = tensor.shape, tensor.strides, storage.offset + tensor.offset
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    behind = first if 0 in shape else first + sum(steps) + 1
    if min(0, storage.offset, tensor.offset, *shape, *strides) < 0 or behind > storage.size:
        raise pickle.UnpicklingError(f"a tensor of {list(shape)} reaches beyond its storage")
    # A stride of 0 repeats a number: a small file could stand for any number of gigabytes.
    if math.prod(shape) > _MOST_REPEATS * storage.size:
        raise pickle.UnpicklingError(f"a tensor of {list(shape)} repeats its numbers too often")
    return tensor


def _axes(shape: object) -> Collection[object]:
    """Refuses a shape of many axes: as many tensors as a file has bytes may share it."""
    if not isinstance(shape, tuple | list) or len(shape) > MOST_AXES:
        raise pickle.UnpicklingError(f"a tensor has no shape of up to {MOST_AXES} axes")
    return shape


def _whole(*numbers: object) -> tuple[int, ...]:
    """Returns whole numbers; products of numbers with millions of digits would take minutes."""
    whole = [
        number for number in numbers if isinstance(number, int) and abs(number) <= _MOST_NUMBER
    ]
    if len(whole) < len(numbers):
        raise pickle.UnpicklingError("a tensor has an impossible shape")
    return tuple(map(int, whole))


def named_tensors(saved: object) -> Iterator[tuple[str, StridedView]]:
    """Yields the tensors in nested dictionaries; keys are joined by dots."""
    # Each dictionary once: a hostile file may nest one in itself.
    seen: set[int] = set()
    characters = 0
    waiting = [("", saved)]
    while waiting:
        name, value = waiting.pop()
        value = value.data if isinstance(value, _Parameter) else value
        if isinstance(value, StridedView):
            yield name, value
        elif isinstance(value, dict) and id(value) not in seen:
            seen.add(id(value))
            prefix = f"{name}." if name else ""
            # dict's own method: a pickle can override it on an OrderedDict.
            for key, item in reversed(dict.items(value)):
                waiting.append((f"{prefix}{key}", item))
                characters += len(waiting[-1][0])
                if characters > _MOST_NAMES:
                    raise pickle.UnpicklingError("its names are too long")


class _Parameter:
    """A parameter as PyTorch up to 0.3 saved it."""

    def __init__(self, data: object = None, *_: object) -> None:
        self.data = data

    def __setstate__(self, state: tuple[object, ...]) -> None:
        # The oldest have five values, the tensor first; later ones have none here.
        if len(state) == 5:
            self.data = state[0]


def _whole_line(file: IO[bytes]) -> bytes:
    line = file.readline()
    if not line.endswith(b"\n"):
        raise EOFError("a name is cut off")
    return line


def _rebuild_parameter(tensor: StridedView, *_: object) -> StridedView:
    return tensor


# Sets, extensions, buffers outside of the file, and classes and dictionaries of protocol 0.
_NOT_NEEDED = (
    *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.NEXT_BUFFER),
    *(pickle.READONLY_BUFFER, pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.INST, pickle.OBJ, pickle.DICT, pickle.NEWOBJ_EX),
)


class _Dictionary(OrderedDict[Any, Any]):
    """A dictionary without tuples as keys, which can have 2^N parts in N steps."""

    def __init__(self, pairs: Iterable[tuple[object, object]] = ()) -> None:
        super().__init__()
        for key, value in pairs:
            self[key] = value

    def __setitem__(self, key: object, value: object) -> None:
        if not isinstance(key, str | bytes | int | float | None):
            raise pickle.UnpicklingError(f"a {type(key).__name__} as a key")
        super().__setitem__(key, value)


class _Unpickler(pickle._Unpickler):
    def __init__(self, file: IO[bytes], resolve: Callable[[Any], object] | None) -> None:
        super().__init__(file, encoding="utf-8")
        self._file_readline = partial(_whole_line, file)
        self._resolve = resolve
        self._allowed: dict[tuple[str, str], object] = {
            ("collections", "OrderedDict"): _Dictionary,
            ("torch", "Size"): tuple,
            ("torch._utils", "_rebuild_tensor"): make_tensor,
            ("torch._utils", "_rebuild_tensor_v2"): make_tensor,
            ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
            ("torch.nn.parameter", "Parameter"): _Parameter,
        }
        for name, dtype in _DTYPES.items():
            self._allowed["torch", f"{name}Storage"] = dtype
            self._allowed["torch", f"{name}Tensor"] = dtype

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self._allowed:
            raise ForbiddenCallError(f"{module}.{name}")
        return self._allowed[module, name]

    def persistent_load(self, pid: object) -> object:
        if self._resolve is None:
            raise pickle.UnpicklingError("an unexpected persistent id")
        return self._resolve(pid)

    def _empty_dict(self: Any) -> None:
        self.append(_Dictionary())

    def _build(self: Any) -> None:
        """Sets the state of the last object: a parameter's tensor; other state does not matter."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _Parameter):
            target.__setstate__(state)
        elif not isinstance(target, _Dictionary):
            raise pickle.UnpicklingError("the state of something that has none")

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("an instruction that tensors do not need")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.EMPTY_DICT[0]: _empty_dict,
        pickle.BUILD[0]: _build,
        **dict.fromkeys(b"".join(_NOT_NEEDED), _refuse),
    }
