"""The operations that the compiler maps onto the Edge TPU, by name, with their conditions.

Source: the table "Supported operations" and the requirements above it of
https://coral.ai/docs/edgetpu/models-intro, written from memory and compared with an older version
of that page. The compiler itself ends the mapped part at the first operation that it refuses, and
leaves the rest of the model to the CPU.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from stillbox.errors import UserError
from stillbox.exporting.tflite.quantization import operations_of
from stillbox.references import Parameter

_SOFTMAX_MOST = 16_000
_INTEGERS = ("INT8", "UINT8")
# A bias has the sum's 32 bits; shapes, axes and paddings are constants of the graph.
_CONSTANTS = ("INT8", "UINT8", "INT32", "INT64")


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    kind: str
    constant: np.ndarray | None
    """The values of int32, the bytes of other constants."""


@dataclass(frozen=True)
class _Operation:
    kind: str
    inputs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]
    options: object

    def option(self, name: str) -> int:
        """Returns a number among the options; their default is 0."""
        return int(getattr(self.options, name, 0) or 0)

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The axes of a reduction, its second input, from 0."""
        held = self.inputs[1].constant
        assert held is not None
        rank = len(self.inputs[0].shape)
        return tuple(int(axis) % rank for axis in held.reshape(-1))


_Rule = Callable[[_Operation], str | None]
"""Returns why the Edge TPU does not compute an operation; None if it does."""


def _any(operation: _Operation) -> str | None:
    del operation
    return None


def _same_dilation(operation: _Operation) -> str | None:
    pair = operation.option("dilationHFactor"), operation.option("dilationWFactor")
    return None if pair[0] == pair[1] else "its dilation differs in x and y"


def _unfused(operation: _Operation) -> str | None:
    return "it has a fused activation" if operation.option("fusedActivationFunction") else None


def _joined(operation: _Operation) -> str | None:
    held = [tensor.constant for tensor in operation.inputs if tensor.constant is not None]
    if held and (len(operation.inputs) > 2 or any(constant.any() for constant in held)):
        return "it joins a constant other than the zeros of a padding"
    return _unfused(operation)


def _one_row(operation: _Operation) -> str | None:
    if operation.option("weightsFormat"):
        return "its weights are shuffled"
    (output, *_) = operation.outputs
    return None if prod(output.shape[:-1]) == 1 else "its result has more than one row"


def _within_image(operation: _Operation) -> str | None:
    return "it reduces the batch" if 0 in operation.axes else None


def _mean(operation: _Operation) -> str | None:
    shape = operation.inputs[0].shape
    if len(shape) - 1 in operation.axes and shape[-1] % 4:
        return f"it averages {shape[-1]} channels, which are no multiple of 4"
    return _within_image(operation)


def _unpadded_batch(operation: _Operation) -> str | None:
    held = operation.inputs[1].constant
    return "it pads the batch" if held is None or held.reshape(-1, 2)[0].any() else None


def _softmax(operation: _Operation) -> str | None:
    shape = operation.inputs[0].shape
    if prod(shape[:-1]) > 1 or shape[-1] > _SOFTMAX_MOST:
        return f"its input is {_sides(shape)}, and must be one row of at most {_SOFTMAX_MOST:,}"
    return None


def _without_steps(operation: _Operation) -> str | None:
    steps = operation.inputs[3].constant
    odd = operation.option("ellipsisMask") or operation.option("newAxisMask")
    return "it takes steps" if odd or steps is None or (steps != 1).any() else None


def _axis_of_image(operation: _Operation) -> str | None:
    return None if operation.option("axis") else "it is along the batch"


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        [
            *("ADD", "EXPAND_DIMS", "L2_NORMALIZATION", "LOGISTIC", "MAXIMUM", "MINIMUM", "MUL"),
            *("PRELU", "QUANTIZE", "RELU", "RELU6", "RELU_N1_TO_1", "RESHAPE", "RESIZE_BILINEAR"),
            *("RESIZE_NEAREST_NEIGHBOR", "RSQRT", "SLICE", "SPACE_TO_DEPTH", "SQUARED_DIFFERENCE"),
            *("SQUEEZE", "SUB", "TANH", "TRANSPOSE", "TRANSPOSE_CONV"),
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
        ],
        _any,
    ),
    "AVERAGE_POOL_2D": _unfused,
    "CONCATENATION": _joined,
    "CONV_2D": _same_dilation,
    "DEPTHWISE_CONV_2D": _same_dilation,
    "FULLY_CONNECTED": _one_row,
    "MAX_POOL_2D": _unfused,
    "MEAN": _mean,
    "PACK": _axis_of_image,
    "PAD": _unpadded_batch,
    **dict.fromkeys(["REDUCE_MAX", "REDUCE_MIN", "SUM"], _within_image),
    "SOFTMAX": _softmax,
    "STRIDED_SLICE": _without_steps,
}


def check_operations(content: bytes, *, quantized: bool) -> None:
    """Refuses a model that the Edge TPU does not compute from its input to its outputs.

    Args:
        content: a model.
        quantized: it has integers, and may have the operation behind them; otherwise it is the
            float32 model that is to be quantised.

    Raises:
        UserError: the first operation that is not among the supported ones, or not as it is here.
    """
    for operation in _operations(content):
        # The CPU converts the results to floats and suppresses.
        if quantized and operation.kind in ("DEQUANTIZE", "CUSTOM"):
            continue
        if reason := _refusal(operation, quantized):
            raise UserError(
                f"the Edge TPU does not compute the operation {operation.kind} of "
                f"{operation.outputs[0].name!r}: {reason}",
                where=f"{Parameter('quantize', 'int8')} {Parameter('postprocess', 'detection_op')}",
                fix="use a detector of plain convolutions, such as ssd_mobilenet_v1_300x300 or "
                f"ssdlite_mobilenet_v2_coco, or {Parameter('postprocess')} built_in",
            )


def _refusal(operation: _Operation, quantized: bool) -> str | None:
    if operation.kind not in _RULES:
        return "it is not among its operations"
    for tensor in (*operation.inputs, *operation.outputs):
        kinds = _INTEGERS if tensor.constant is None else _CONSTANTS
        if quantized and tensor.kind not in kinds:
            return f"{tensor.name!r} is {tensor.kind.lower()}, not 8-bit integers"
        if tensor.constant is None and prod(tensor.shape[:-3]) > 1:
            return f"{tensor.name!r} is {_sides(tensor.shape)}, more than three axes"
    return _RULES[operation.kind](operation)


def _sides(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _operations(content: bytes) -> Iterator[_Operation]:
    from ai_edge_litert import schema_py_generated as flat
    from ai_edge_litert.tools import flatbuffer_utils

    types = {code: name for name, code in vars(flat.TensorType).items()}
    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    graph = model.subgraphs[0]
    tensors = [
        _Tensor(
            tensor.name.decode(),
            tuple(int(side) for side in tensor.shape),
            types[tensor.type],
            _values(model.buffers[tensor.buffer].data, tensor.type == flat.TensorType.INT32),
        )
        for tensor in graph.tensors
    ]
    for kind, operation in operations_of(model):
        yield _Operation(
            kind,
            tuple(tensors[index] for index in operation.inputs if index >= 0),
            tuple(tensors[index] for index in operation.outputs),
            operation.builtinOptions,
        )


def _values(data: np.ndarray | bytes | None, int32: bool) -> np.ndarray | None:
    if data is None or not len(data):
        return None
    return np.frombuffer(bytes(data), np.int32 if int32 else np.uint8)
