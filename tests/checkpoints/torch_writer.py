"""Writes what `torch.save` writes, in its three forms, so that tests need no PyTorch.

Independent of the reader on purpose: pickles are put together opcode by opcode.
"""

import io
import struct
import tarfile
import zipfile
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

_STORAGES = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}


@dataclass(frozen=True)
class Global:
    """A function or class by name."""

    module: str
    name: str


@dataclass(frozen=True)
class Call:
    """The result of a function."""

    function: Any
    arguments: tuple


@dataclass(frozen=True)
class New:
    """An object that `__new__` makes."""

    kind: Any
    arguments: tuple


@dataclass(frozen=True)
class Built:
    """An object that is given a state."""

    value: Any
    state: Any


@dataclass(frozen=True)
class Reference:
    """A persistent id."""

    value: Any


@dataclass(frozen=True)
class View:
    """A tensor that is a part of an array of one axis."""

    storage: np.ndarray
    offset: int
    shape: tuple
    strides: tuple


def state_dict(arrays):
    """As `Module.state_dict` returns it: an OrderedDict with an attribute."""
    metadata = Built(Call(Global("collections", "OrderedDict"), ()), {"_metadata": {"": {}}})
    return _Items(metadata, arrays)


@dataclass(frozen=True)
class _Items:
    """A dictionary, filled."""

    value: Any
    items: dict


def pickled(value):
    """A pickle of protocol 2."""
    return b"\x80\x02" + _encode(value) + b"."


def _encode(value):
    match value:
        case Global():
            return f"c{value.module}\n{value.name}\n".encode()
        case Call():
            return _encode(value.function) + _encode(value.arguments) + b"R"
        case New():
            return _encode(value.kind) + _encode(value.arguments) + b"\x81"
        case Built():
            return _encode(value.value) + _encode(value.state) + b"b"
        case Reference():
            return _encode(value.value) + b"Q"
        case _Items():
            pairs = [_encode(part) for pair in value.items.items() for part in pair]
            return _encode(value.value) + b"(" + b"".join(pairs) + b"u"
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            size = value.bit_length() // 8 + 1
            return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            encoded = value.encode()
            return b"X" + struct.pack("<I", len(encoded)) + encoded
        case tuple():
            return b"(" + b"".join(map(_encode, value)) + b"t"
        case list():
            return b"](" + b"".join(map(_encode, value)) + b"e"
        case dict():
            return _encode(_Items(Call(Global("collections", "OrderedDict"), ()), value))
    raise TypeError(value)


def write_zip(path, saved, *, byteorder="little"):
    """The form since PyTorch 1.6."""
    storages = _Storages()
    data = pickled(storages.refer(saved))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights/data.pkl", data)
        archive.writestr("weights/byteorder", byteorder)
        for key, array in storages.arrays.items():
            archive.writestr(f"weights/data/{key}", array.tobytes())
        archive.writestr("weights/version", "3\n")


def write_pickles(path, saved, *, little_endian=True):
    """The form from PyTorch 0.1.9 to 1.5."""
    # Until 0.4, storages could be parts of others.
    storages = _Storages(view=(None,))
    data = pickled(storages.refer(saved))
    system = {"protocol_version": 1001, "little_endian": little_endian, "type_sizes": {"int": 4}}
    with path.open("wb") as file:
        for head in (0x1950A86A20F9469CFC6C, 1001, system):
            file.write(pickled(head))
        file.write(data + pickled(list(storages.arrays)))
        for array in storages.arrays.values():
            file.write(struct.pack("<q", array.size) + array.tobytes())


def write_tar(path, saved, *, part_of=None):
    """The form before PyTorch 0.1.9, of torchvision's first weights.

    Here each array has a storage of its own; `part_of` makes them parts of one more that holds
    something else at its ends.
    """
    arrays = []

    def refer(value):
        match value:
            case np.ndarray():
                arrays.append(value)
                return Reference(str(1000 + len(arrays)))
            case _:
                return _map_values(refer, value)

    data = pickled(refer(saved))
    storages, views, tensors = [], [], [pickled(len(arrays))]
    for number, array in enumerate(arrays, start=1):
        kind = Global("torch", _STORAGES[str(array.dtype)])
        numbers, key = np.ascontiguousarray(array).reshape(-1), 2000 + number
        if part_of is not None:
            numbers = np.concatenate([part_of, numbers, part_of]).astype(array.dtype)
            views.append((key, 3000 + number, len(part_of), array.size))
            key = 3000 + number
        storages += [pickled((key, "cpu", kind)), struct.pack("<q", numbers.size)]
        storages.append(numbers.tobytes())
        kind = Global("torch", kind.name.replace("Storage", "Tensor"))
        strides = tuple(
            stride // array.itemsize for stride in np.empty(array.shape, array.dtype).strides
        )
        tensors.append(pickled((1000 + number, 2000 + number, kind)))
        axes = array.ndim
        layout = struct.pack(f"<{2 * axes + 1}q", *array.shape, *strides, 0)
        tensors.append(struct.pack("<q", axes) + layout)
    members = {
        "storages": b"".join([pickled(len(arrays)), *storages, pickled(views)]),
        "tensors": b"".join(tensors),
        "pickle": data,
    }
    with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


class _Storages:
    """Assigns keys to storages."""

    def __init__(self, view=()):
        self.arrays, self.keys, self.view = {}, {}, view

    def refer(self, value):
        """Replaces arrays by torch's calls that rebuild them."""
        match value:
            case np.ndarray():
                strides = tuple(
                    stride // value.itemsize
                    for stride in np.empty(value.shape, value.dtype).strides
                )
                flat = np.ascontiguousarray(value).reshape(-1)
                return self.refer(View(flat, 0, value.shape, strides))
            case View():
                arguments = (self._reference(value.storage), value.offset)
                arguments += (value.shape, value.strides, False, {})
                return Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments)
            case _:
                return _map_values(self.refer, value)

    def _reference(self, array):
        key = self.keys.setdefault(id(array), str(len(self.keys)))
        self.arrays[key] = array
        kind = Global("torch", _STORAGES[str(array.dtype)])
        return Reference(("storage", kind, key, "cpu", array.size, *self.view))


def _map_values(function, value):
    match value:
        case dict():
            return {key: function(item) for key, item in value.items()}
        case _Items():
            return _Items(value.value, _map_values(function, value.items))
        case list() | tuple():
            return type(value)(map(function, value))
        case Call() | New():
            return type(value)(*(function(part) for part in vars(value).values()))
        case Built():
            return Built(function(value.value), function(value.state))
    return value


def typed_arrays():
    """An array of each type that a storage may have."""
    return {f"{kind}.weight": numbers_of(kind) for kind in map(jnp.dtype, _STORAGES)}


def numbers_of(dtype):
    """Small, large and negative numbers as far as the type has them, `[2, 3]`."""
    floats = np.array([[0.0, -1.5, 3.25], [1e-3, 6e4, 7.0]])
    integers = np.array([[0, -1 if dtype.kind == "i" else 1, 3], [100, 64, 7]])
    return (integers if dtype.kind in "iu" else floats).astype(dtype)
