"""Elementwise operations, sums and maxima as ONNX."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stillbox.errors import UserError
from stillbox.exporting.onnx.graph import (
    BATCH,
    BOOL,
    FLOAT,
    INT32,
    UINT8,
    Attribute,
    Clipped,
    Constant,
    Convolved,
    NetworkWriter,
    Order,
    Repeated,
    Tensor,
    Value,
    by_channel,
    fixed,
    identity,
)
from stillbox.models.jaxpr import Equation

EquationWriter = Callable[[NetworkWriter, list[Value], Equation], Value | list[Value]]
"""From the inputs of an equation and the equation itself to its result, or all of its results."""

TYPES = {"float32": FLOAT, "int32": INT32, "bool": BOOL, "uint8": UINT8}
"""ONNX's types by NumPy's names."""


def fold(equation: Equation, inputs: list[Constant]) -> Constant:
    """Computes an equation of a jaxpr with constants as inputs."""
    kind, parameters = equation.primitive.name, equation.params
    arrays = [constant.array for constant in inputs]
    shapes = [fixed(variable.aval.shape) for variable in equation.invars]
    if kind == "convert_element_type" and arrays[0].dtype == parameters["new_dtype"]:
        return inputs[0]  # the same object marks a shared kernel
    if kind == "broadcast_in_dim":
        # New axes keep length 1; the other operand of the next operation broadcasts them.
        shape = [1] * len(parameters["shape"])
        axes = parameters["broadcast_dimensions"]
        for axis, length in zip(axes, arrays[0].shape, strict=True):
            shape[axis] = length
        return Constant(arrays[0].reshape(shape))
    if kind == "reshape":
        shape = [length if isinstance(length, int) else -1 for length in parameters["new_sizes"]]
        return Constant(np.broadcast_to(arrays[0], shapes[0]).reshape(shape))
    if kind in ARITHMETIC:
        arrays = list(np.broadcast_arrays(*arrays))
    else:
        arrays = [
            np.broadcast_to(array, shape) for array, shape in zip(arrays, shapes, strict=True)
        ]
    parameters = {name: _fixed(value) for name, value in parameters.items()}
    return Constant(np.asarray(equation.primitive.bind(*arrays, **parameters)))


def _fixed(parameter: object) -> object:
    """Returns a parameter of an operation with 1 for free lengths."""
    if type(parameter) is tuple:  # a named tuple has no lengths
        return tuple(map(_fixed, parameter))
    return 1 if isinstance(parameter, type(BATCH)) else parameter


def _binary(kind: str) -> EquationWriter:
    def write(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
        left, right = inputs
        if equation.outvars[0].aval.dtype != np.float32:
            return node(writer, kind, inputs)
        if isinstance(left, Constant) and kind in ("Add", "Mul", "Max", "Min"):
            left, right = right, left
        if isinstance(right, Constant):
            if isinstance(left, Convolved) and (scaled := _scaled(left, kind, right)):
                return scaled
            if kind in ("Max", "Min") and right.array.size == 1:
                return _clipped(left, kind, float(right.array.reshape(())))
        return node(writer, kind, [left, right])

    return write


def node(
    writer: NetworkWriter, kind: str, operands: list[Value], **attributes: Attribute
) -> Tensor:
    """Writes an elementwise node in the order of the first tensor among its operands."""
    # Repeated operands are not expanded if another operand has the whole shape.
    computed = [operand for operand in operands if not isinstance(operand, Constant)]
    whole = any(not isinstance(operand, Repeated) for operand in computed)
    tensors: dict[int, Tensor] = {
        id(operand): writer.unexpanded(operand)
        if whole and isinstance(operand, Repeated)
        else writer.tensor(operand)
        for operand in computed
    }
    order = tensors[id(computed[0])].order
    names = [
        _constant(writer, operand, order)
        if isinstance(operand, Constant)
        else writer.name(tensors[id(operand)], order)
        for operand in operands
    ]
    return Tensor(writer.graph.op(kind, *names, name=None, **attributes), order)


def _constant(writer: NetworkWriter, value: Constant, order: Order) -> str:
    array = value.array.transpose(order) if value.array.ndim else value.array
    while array.ndim and array.shape[0] == 1:
        array = array[0]
    return writer.graph.constant(array)


def _scaled(left: Convolved, kind: str, right: Constant) -> Convolved | None:
    """Returns a convolution with the operation in its factor and offset; None if impossible."""
    numbers = by_channel(right, len(left.factor), left.order[1])
    if numbers is None or kind not in ("Add", "Sub", "Mul", "Div"):
        return None
    if kind in ("Add", "Sub"):
        return replace(left, offset=left.offset + (numbers if kind == "Add" else -numbers))
    numbers = numbers if kind == "Mul" else 1 / numbers
    return replace(left, factor=left.factor * numbers, offset=left.offset * numbers)


def _clipped(value: Value, kind: str, end: float) -> Clipped:
    if not isinstance(value, Clipped):
        value = Clipped(value)
    if kind == "Max":
        return replace(value, low=max(value.low, end), high=max(value.high, end))
    return replace(value, low=min(value.low, end), high=min(value.high, end))


def _unary(*kinds: str) -> EquationWriter:
    def write(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
        tensor = writer.tensor(inputs[0])
        name = tensor.name
        for kind in kinds:
            name = writer.graph.op(kind, name)
        return Tensor(name, tensor.order)

    return write


def _convert(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    wanted = equation.params["new_dtype"]
    if equation.invars[0].aval.dtype == wanted:
        return inputs[0]
    if wanted.name not in TYPES:
        raise UserError(f"the network computes in {wanted}, which cannot be written as ONNX")
    tensor = writer.tensor(inputs[0])
    return Tensor(writer.graph.op("Cast", tensor.name, to=TYPES[wanted.name]), tensor.order)


def _select(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    condition, otherwise, chosen = inputs
    return node(writer, "Where", [condition, chosen, otherwise])


def _different(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    equal = node(writer, "Equal", inputs)
    return Tensor(writer.graph.op("Not", equal.name), equal.order)


def _clamp(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    low, value, high = inputs
    return node(writer, "Min", [node(writer, "Max", [value, low]), high])


def _log1p(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    # ONNX has no such operation. log(1 + x) = 2 artanh(x / (2 + x)), which keeps the digits of a
    # small x; networks compute it for numbers below 1.
    tensor = writer.tensor(inputs[0])
    graph, two = writer.graph, np.array(2, np.float32)
    share = graph.op("Div", tensor.name, graph.op("Add", tensor.name, two))
    return Tensor(graph.op("Mul", graph.op("Atanh", share), two), tensor.order)


def _expm1(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    # exp(x) - 1 = tanh(x / 2) (exp(x) + 1), which keeps the digits too.
    tensor = writer.tensor(inputs[0])
    graph = writer.graph
    half = graph.op("Tanh", graph.op("Mul", tensor.name, np.array(0.5, np.float32)))
    above = graph.op("Add", graph.op("Exp", tensor.name), np.array(1, np.float32))
    return Tensor(graph.op("Mul", half, above), tensor.order)


_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "And", "Or")
_UNARY = ("Neg", "Abs", "Exp", "Log", "Sqrt", "Floor", "Sign", "Not")

ARITHMETIC: dict[str, EquationWriter] = {
    **{kind.lower(): _binary(kind) for kind in _BINARY},
    **{kind.lower(): _unary(kind) for kind in _UNARY},
    "lt": _binary("Less"),
    "le": _binary("LessOrEqual"),
    "gt": _binary("Greater"),
    "ge": _binary("GreaterOrEqual"),
    "eq": _binary("Equal"),
    "rsqrt": _unary("Sqrt", "Reciprocal"),
    "logistic": _unary("Sigmoid"),
    "square": lambda writer, inputs, equation: node(writer, "Mul", inputs * 2),
    "expm1": _expm1,
    "log1p": _log1p,
    "stop_gradient": lambda writer, inputs, equation: inputs[0],
    "ne": _different,
    # The remainder has the sign of the dividend.
    "rem": lambda writer, inputs, equation: node(writer, "Mod", inputs, fmod=1),
    "clamp": _clamp,
    "select_n": _select,
    "convert_element_type": _convert,
}
"""By the names of JAX's primitives."""


def reduction(kind: str) -> EquationWriter:
    """Returns an operation that writes an ONNX operator over some axes."""

    def write(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
        tensor, axes = writer.tensor(inputs[0]), equation.params["axes"]
        kept = [axis for axis in identity(len(tensor.order)) if axis not in axes]
        name = writer.graph.op(
            kind, tensor.name, np.array([tensor.order.index(axis) for axis in axes]), keepdims=0
        )
        return Tensor(name, tuple(kept.index(axis) for axis in tensor.order if axis in kept))

    return write
