"""The operations of a traced network as ONNX."""

from typing import Any

import numpy as np

from stillbox.errors import UserError
from stillbox.exporting.onnx.arithmetic import ARITHMETIC, Operation, reduction
from stillbox.exporting.onnx.values import (
    Convolved,
    Known,
    Order,
    Padded,
    Repeated,
    Tensor,
    Value,
    identity,
)
from stillbox.exporting.onnx.writer import NetworkWriter

_NCHW = (0, 3, 1, 2)
"""The order of ONNX's images, as axes of `[B, H, W, C]`."""


def _convolution(writer: NetworkWriter, inputs: list[Value], equation: Any) -> Value:  # noqa: ANN401
    image, kernel = inputs
    parameters = equation.params
    layout = parameters["dimension_numbers"]
    pads = [list(pair) for pair in parameters["padding"]]
    if isinstance(image, Padded) and image.value == 0.0 and _is_spatial(image, layout.lhs_spec):
        for pair, axis in zip(pads, layout.lhs_spec[2:], strict=True):
            pair[0] += image.pads[axis][0]
            pair[1] += image.pads[axis][1]
        image = image.source
    if not isinstance(kernel, Known) or set(parameters["lhs_dilation"]) != {1}:
        raise UserError("a convolution with a computed kernel cannot be written as ONNX")
    channels = kernel.array.shape[layout.rhs_spec[0]]
    return Convolved(
        source=Tensor(writer.name(image, layout.lhs_spec), layout.lhs_spec),
        kernel=kernel,
        kernel_order=layout.rhs_spec,
        order=layout.out_spec,
        attributes={
            "strides": list(parameters["window_strides"]),
            "pads": [pair[end] for end in (0, 1) for pair in pads],
            "dilations": list(parameters["rhs_dilation"]),
            "group": parameters["feature_group_count"],
        },
        factor=np.ones(channels),
        offset=np.zeros(channels),
    )


def _is_spatial(value: Padded, layout: Order) -> bool:
    return all(value.pads[axis] == (0, 0) for axis in layout[:2])


def _pad(writer: NetworkWriter, inputs: list[Value], equation: Any) -> Value:  # noqa: ANN401
    image, value = inputs
    config = equation.params["padding_config"]
    if not isinstance(value, Known) or any(inner for _, _, inner in config):
        raise UserError("a padding between elements cannot be written as ONNX")
    pads = tuple((before, after) for before, after, _ in config)
    return Padded(image, pads, float(value.array.reshape(())))


def _max_pool(writer: NetworkWriter, inputs: list[Value], equation: Any) -> Value:  # noqa: ANN401
    # The padding of ONNX is never the maximum, as in JAX.
    parameters, axes = equation.params, (1, 2)
    name = writer.graph.op(
        "MaxPool",
        writer.name(inputs[0], _NCHW),
        kernel_shape=[parameters["window_dimensions"][axis] for axis in axes],
        strides=[parameters["window_strides"][axis] for axis in axes],
        pads=[parameters["padding"][axis][end] for end in (0, 1) for axis in axes],
    )
    return Tensor(name, _NCHW)


def _broadcast(writer: NetworkWriter, inputs: list[Value], equation: Any) -> Value:  # noqa: ANN401
    source, parameters = inputs[0], equation.params
    axes, shape = tuple(parameters["broadcast_dimensions"]), parameters["shape"]
    before = [1] * len(shape)
    for axis, length in zip(axes, equation.invars[0].aval.shape, strict=True):
        before[axis] = length
    longer = tuple(before) != shape or (isinstance(source, Repeated) and source.longer)
    return Repeated(source, axes, shape, longer)


def _reshape(writer: NetworkWriter, inputs: list[Value], equation: Any) -> Value:  # noqa: ANN401
    (value,), shape = inputs, equation.outvars[0].aval.shape
    if isinstance(value, Repeated) and (enlarged := _enlarged(writer, value, shape)):
        return enlarged
    # 0 keeps the length of the first axis, the batch, which may be free.
    lengths = np.array([0, *shape[1:]])
    whole = writer.name(value, identity(len(equation.invars[0].aval.shape)))
    return Tensor(writer.graph.op("Reshape", whole, lengths), identity(len(shape)))


def _enlarged(writer: NetworkWriter, value: Repeated, shape: tuple[Any, ...]) -> Tensor | None:
    """Returns an image with repeated rows and columns if the reshape makes one."""
    inner, axes = value.source, value.axes
    if isinstance(inner, Repeated):
        axes, inner = tuple(axes[axis] for axis in inner.axes), inner.source
    if len(value.shape) != 6 or axes != (0, 1, 3, 5) or len(shape) != 4:
        return None
    name = writer.graph.op(
        "Resize",
        writer.name(inner, _NCHW),
        "",
        np.array([1, 1, value.shape[2], value.shape[4]], np.float32),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return Tensor(name, _NCHW)


def _transpose(writer: NetworkWriter, inputs: list[Value], equation: Any) -> Value:  # noqa: ANN401
    tensor, moved = writer.tensor(inputs[0]), equation.params["permutation"]
    return Tensor(tensor.name, tuple(moved.index(axis) for axis in tensor.order))


def _slice(writer: NetworkWriter, inputs: list[Value], equation: Any) -> Value:  # noqa: ANN401
    tensor, parameters = writer.tensor(inputs[0]), equation.params
    starts, ends = parameters["start_indices"], parameters["limit_indices"]
    steps = parameters["strides"] or (1,) * len(starts)
    lengths = equation.invars[0].aval.shape
    cut = [
        axis
        for axis, length in enumerate(lengths)
        if (starts[axis], ends[axis], steps[axis]) != (0, length, 1)
    ]
    columns = [[numbers[axis] for axis in cut] for numbers in (starts, ends)]
    places = [tensor.order.index(axis) for axis in cut]
    arrays = [np.array(column) for column in (*columns, places, [steps[axis] for axis in cut])]
    return Tensor(writer.graph.op("Slice", tensor.name, *arrays), tensor.order)


def _concatenate(writer: NetworkWriter, inputs: list[Value], equation: Any) -> Value:  # noqa: ANN401
    order = next(writer.tensor(one) for one in inputs if not isinstance(one, Known)).order
    names = [writer.name(one, order) for one in inputs]
    axis = order.index(equation.params["dimension"])
    return Tensor(writer.graph.op("Concat", *names, axis=axis), order)


OPERATIONS: dict[str, Operation] = {
    **ARITHMETIC,
    "conv_general_dilated": _convolution,
    "pad": _pad,
    "reduce_window_max": _max_pool,
    "reduce_max": reduction("ReduceMax"),
    "reduce_sum": reduction("ReduceSum"),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
}
"""By the names of JAX's primitives."""
