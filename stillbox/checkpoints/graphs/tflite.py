"""Reads the weights of TFLite models without TensorFlow.

Integers become floating point by their factor and zero point, one of the tensor or one of each
channel. Every offset of the flatbuffer is compared with the size of the file. Sources:
`tensorflow/compiler/mlir/lite/schema/schema.fbs`; flatbuffers.dev, "Internals".
"""

import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike

from stillbox.checkpoints.array_files import check_unpacked
from stillbox.checkpoints.files import damage_of
from stillbox.checkpoints.graphs.graph import GraphArrays
from stillbox.checkpoints.graphs.operations import MOST_OPERATIONS, Operation, OperationKind
from stillbox.errors import UserError
from stillbox.untrusted import read_untrusted

_SIZES = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8}

# Names of tensors that were merged are joined.
_MOST_TEXT_BYTES = 1000


class FlatBufferError(ValueError):
    """An offset leads out of the file."""


class Table(NamedTuple):
    """A table at a place of a file."""

    data: bytes
    at: int

    @classmethod
    def root(cls, data: bytes) -> Self:
        """Returns the table that a file begins with."""
        return cls(data, _number(data, 0, "I"))

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """Returns a number; `kind` is its letter in `struct`."""
        place = self._place(field)
        return default if place is None else _number(self.data, place, kind)

    def table(self, field: int) -> Self | None:
        """Returns a table inside this one, if it is there."""
        place = self._place(field)
        return None if place is None else type(self)(self.data, _follow(self.data, place))

    def tables(self, field: int, most: int) -> Iterator[Self]:
        """Yields the tables of a vector.

        Raises:
            FlatBufferError: there are more than `most`.
        """
        start, count = self._vector(field, 4)
        if count > most:
            raise FlatBufferError(f"a list has {count:,} entries")
        for place in range(start, start + 4 * count, 4):
            yield type(self)(self.data, _follow(self.data, place))

    def numbers(self, field: int, dtype: DTypeLike) -> np.ndarray:
        """Returns a vector of numbers, empty if it is not there."""
        size = np.dtype(dtype).itemsize
        start, count = self._vector(field, size)
        return np.frombuffer(self.data, dtype, count, start) if count else np.zeros(0, dtype)

    def place(self, field: int) -> tuple[int, int]:
        """Returns start and end of a vector of bytes, both 0 if it is not there."""
        start, count = self._vector(field, 1)
        return start, start + count

    def text(self, field: int) -> str:
        """Returns a text of at most a thousand bytes, empty if it is not there."""
        start, end = self.place(field)
        return self.data[start : min(end, start + _MOST_TEXT_BYTES)].decode(errors="replace")

    def _place(self, field: int) -> int | None:
        """Returns where a field's value or offset is."""
        fields = self.at - _number(self.data, self.at, "i")
        size = _number(self.data, fields, "H")
        entry = 4 + 2 * field
        offset = _number(self.data, fields + entry, "H") if entry + 2 <= size else 0
        return self.at + offset if offset else None

    def _vector(self, field: int, size: int) -> tuple[int, int]:
        """Returns where the values of a vector begin, and how many they are."""
        place = self._place(field)
        if place is None:
            return 0, 0
        at = _follow(self.data, place)
        count = _number(self.data, at, "I")
        if at + 4 + count * size > len(self.data):
            raise FlatBufferError(f"a list at byte {at:,} reaches past the end")
        return at + 4, count


def _number(data: bytes, at: int, kind: str) -> int:
    if not 0 <= at <= len(data) - _SIZES[kind]:
        raise FlatBufferError(f"an offset leads to byte {at:,} of {len(data):,}")
    value: int = struct.unpack_from(f"<{kind}", data, at)[0]
    return value


def _follow(data: bytes, at: int) -> int:
    return at + _number(data, at, "I")


# Offsets in a flatbuffer have 32 bits; weights may follow it.
_MOST_BYTES = 2**31
_MOST_AXES = 8
# Inputs and outputs of all operations, of which several may be one list.
_MOST_USES = 1_000_000
_IDENTIFIER = b"TFL3"
_FIX = "copy the file again, or export the model again"
# Numbers of `TensorType`.
_DTYPES = {0: "<f4", 1: "<f2", 2: "<i4", 3: "u1", 4: "<i8", 7: "<i2", 9: "i1", 10: "<f8"}
# Numbers of `BuiltinOperator`.
_KINDS: Mapping[int, OperationKind] = {
    0: "add",
    3: "convolution",
    4: "depthwise",
    6: "same",  # DEQUANTIZE
    14: "scores",  # LOGISTIC
    18: "multiply",
    22: "reshape",
    25: "scores",  # SOFTMAX
    34: "pad",
    37: "same",  # BATCH_TO_SPACE_ND, after a convolution with dilation
    41: "subtract",
    42: "divide",
    43: "reshape",  # SQUEEZE
    53: "same",  # CAST
    57: "minimum",
    60: "pad",  # PADV2
    70: "reshape",  # EXPAND_DIMS
    75: "root",
    76: "inverse_root",
    77: "size",  # SHAPE
    101: "absolute",
    106: "add",  # ADD_N
    110: "size",  # RANK
    114: "same",  # QUANTIZE
    130: "reshape",  # BROADCAST_TO
}
# The field with the fused activation in the options of an operation.
_ACTIVATIONS: Mapping[OperationKind, int] = {
    **{"convolution": 3, "depthwise": 4},
    **{"add": 0, "subtract": 0, "multiply": 0, "divide": 0},
}


class _Tensor(NamedTuple):
    """Type, shape and place of a constant."""

    dtype_number: int
    shape: tuple[int, ...]
    start: int
    end: int
    scales: np.ndarray
    """Factors of integers: one, or one for each entry of an axis."""
    zero_points: np.ndarray
    axis: int
    is_sparse: bool


class TfliteModel(GraphArrays[_Tensor]):
    """The constants of a model's first graph by name, as floating point.

    Raises:
        UserError: it is damaged, or of another format.
    """

    kernel_axes = (1, 2, 3, 0)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = read_untrusted(path, most=_MOST_BYTES)
        try:
            if self._data[4:8] != _IDENTIFIER:
                raise ValueError("it does not begin as one")
            model = Table.root(self._data)
            self._codes = [_code(table) for table in model.tables(1, MOST_OPERATIONS)]
            self._graph = next(model.tables(2, MOST_OPERATIONS), None)
            if self._graph is None:
                raise ValueError("it has no graph")
            tensors = list(self._graph.tables(0, MOST_OPERATIONS))
            self._names = _unique(tensor.text(3) for tensor in tensors)
            buffers = list(model.tables(4, MOST_OPERATIONS))
            places = [_place(buffer) for buffer in buffers]
            entries = [_tensor(tensor, places) for tensor in tensors]
            # Tensors may share a buffer.
            claimed = sum(entry.end - entry.start for entry in entries if entry is not None)
            check_unpacked(claimed, len(self._data))
        except ValueError as error:
            raise self._damaged(error) from error
        super().__init__(
            {
                name: entry
                for name, entry in zip(self._names, entries, strict=True)
                if entry is not None
            }
        )

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """The operations of the graph."""
        try:
            return tuple(self._operations())
        except ValueError as error:
            raise self._damaged(error) from error

    def _operations(self) -> Iterator[Operation]:
        assert self._graph is not None
        count = 0
        for operation in self._graph.tables(3, MOST_OPERATIONS):
            code = operation.number(0, "I")
            if code >= len(self._codes):
                raise ValueError(f"an operation is of kind {code} of {len(self._codes)}")
            kind = _KINDS.get(self._codes[code], "other")
            inputs, outputs = (self._values(operation, field) for field in (1, 2))
            count += len(inputs) + len(outputs)
            if count > _MOST_USES:
                raise ValueError(f"its operations have more than {_MOST_USES:,} inputs")
            options = operation.table(4) if kind in _ACTIVATIONS else None
            activated = options is not None and options.number(_ACTIVATIONS[kind], "b") != 0
            name = outputs[0] if outputs else ""
            yield Operation(name, kind, inputs, outputs, activated)

    def _values(self, operation: Table, field: int) -> tuple[str, ...]:
        """Returns the names of the tensors that an operation reads or writes."""
        indices = operation.numbers(field, "<i4").tolist()
        if any(index >= len(self._names) for index in indices):
            raise ValueError(f"an operation uses tensor {max(indices)} of {len(self._names)}")
        # An optional input that is absent has the number -1.
        return tuple(self._names[index] if index >= 0 else "" for index in indices)

    def _read(self, name: str, entry: _Tensor) -> np.ndarray:
        if entry.is_sparse:
            problem = f"{name!r} cannot be read: it is stored as a sparse array"
            raise UserError(problem, where=str(self._path), fix="export the model without sparsity")
        dtype = np.dtype(_DTYPES[entry.dtype_number])
        values = np.frombuffer(self._data[entry.start : entry.end], dtype).reshape(entry.shape)
        return values if dtype.kind == "f" else _dequantize(values, entry)

    def _damaged(self, error: Exception) -> UserError:
        problem = f"the file is damaged or no TFLite model: {damage_of(error)}"
        return UserError(problem, where=str(self._path), fix=_FIX)


def _code(code: Table) -> int:
    # Codes up to 127 are in a deprecated field too, for older readers.
    return max(code.number(0, "b"), code.number(3, "i"))


def _unique(names: Iterator[str]) -> list[str]:
    """Returns names that differ: those that are empty or occur again get their number."""
    given = list(names)
    counts = Counter(given)
    return [
        name if name and counts[name] == 1 else f"{name}#{number}"
        for number, name in enumerate(given)
    ]


def _place(buffer: Table) -> tuple[int, int]:
    """Returns start and end of a buffer's bytes, inside of the flatbuffer or behind it."""
    offset, size = buffer.number(1, "Q"), buffer.number(2, "Q")
    # 0 and 1 are written of those inside.
    start, end = (offset, offset + size) if offset > 1 else buffer.place(0)
    if end > len(buffer.data):
        raise ValueError(f"a buffer ends at byte {end:,} of {len(buffer.data):,}")
    return start, end


def _tensor(tensor: Table, places: list[tuple[int, int]]) -> _Tensor | None:
    """Returns a constant of numbers that can be weights; None for any other tensor.

    Raises:
        ValueError: its values are more or fewer than its shape says.
    """
    dtype, buffer = tensor.number(1, "b"), tensor.number(2, "I")
    if buffer >= len(places):
        raise ValueError(f"a tensor has buffer {buffer} of {len(places)}")
    start, end = places[buffer]
    axes = tensor.numbers(0, "<i4")
    if start == end or dtype not in _DTYPES or len(axes) > _MOST_AXES:
        return None
    shape = tuple(axes.tolist())
    sparse = tensor.table(6) is not None
    size = np.dtype(_DTYPES[dtype]).itemsize
    name = tensor.text(3)[:80]
    if min(shape, default=0) < 0 or (math.prod(shape) * size != end - start and not sparse):
        raise ValueError(f"{name!r} of shape {list(shape)} has {end - start:,} bytes")
    parameters = tensor.table(4)
    scales = parameters.numbers(2, "<f4") if parameters else np.zeros(0)
    zeros = parameters.numbers(3, "<i8") if parameters else np.zeros(0)
    axis, count = parameters.number(6, "i") if parameters else 0, len(scales)
    if np.dtype(_DTYPES[dtype]).kind != "f" and not count:
        return None
    if count > 1 and (not 0 <= axis < len(shape) or shape[axis] != count):
        raise ValueError(f"{name!r} of shape {list(shape)} has {count:,} factors")
    if len(zeros) not in (0, 1, count):
        raise ValueError(f"{name!r} has {count:,} factors and {len(zeros):,} zero points")
    return _Tensor(dtype, shape, start, end, scales, zeros, axis, sparse)


def _dequantize(values: np.ndarray, tensor: _Tensor) -> np.ndarray:
    """Subtracts the zero point and multiplies by the factor, float32."""
    scales, zeros = tensor.scales, tensor.zero_points.astype(np.float64)
    if len(zeros) == 0:
        zeros = np.zeros(1)
    axes = [1] * values.ndim
    if axes:
        # A single factor is of the whole tensor.
        axes[tensor.axis if len(scales) > 1 else 0] = -1
    # What is not finite is refused by the name of its parameter.
    with np.errstate(over="ignore", invalid="ignore"):
        return ((values - zeros.reshape(axes)) * scales.reshape(axes)).astype(np.float32)
