"""A traced JAX program as an ONNX graph, operation by operation.

Operations that depend only on weights are computed at export. Images keep the order N, C, H, W
between convolutions and are transposed only at the input and before the predictions.
"""

from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np
from jax.lax import GatherDimensionNumbers

from stillbox.boxes.nms import SEARCH
from stillbox.errors import UserError
from stillbox.exporting.onnx.arithmetic import ARITHMETIC, EquationWriter, fold, reduction
from stillbox.exporting.onnx.graph import (
    BOOL,
    INT32,
    INT64,
    Constant,
    Convolved,
    Graph,
    NetworkWriter,
    Order,
    Padded,
    Repeated,
    Tensor,
    Value,
    identity,
)
from stillbox.exporting.onnx.nms import search
from stillbox.jax_internals import Literal
from stillbox.models.jaxpr import (
    Equation,
    Jaxpr,
    TracedProgram,
    Variable,
    called_program,
    used_equations,
)

_NCHW = (0, 3, 1, 2)
"""The order of ONNX's images, as axes of `[B, H, W, C]`."""


def _convolution(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    image, kernel = inputs
    parameters = equation.params
    layout = parameters["dimension_numbers"]
    pads = [list(pair) for pair in parameters["padding"]]
    if isinstance(image, Padded) and image.value == 0.0 and _is_spatial(image, layout.lhs_spec):
        for pair, axis in zip(pads, layout.lhs_spec[2:], strict=True):
            pair[0] += image.pads[axis][0]
            pair[1] += image.pads[axis][1]
        image = image.source
    if not isinstance(kernel, Constant) or set(parameters["lhs_dilation"]) != {1}:
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


def _pad(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    image, value = inputs
    config = equation.params["padding_config"]
    if not isinstance(value, Constant) or any(inner for _, _, inner in config):
        raise UserError("a padding between elements cannot be written as ONNX")
    pads = tuple((before, after) for before, after, _ in config)
    return Padded(image, pads, float(value.array.reshape(())))


def _max_pool(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
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


def _broadcast(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    source, parameters = inputs[0], equation.params
    axes, shape = tuple(parameters["broadcast_dimensions"]), parameters["shape"]
    before = [1] * len(shape)
    for axis, length in zip(axes, equation.invars[0].aval.shape, strict=True):
        before[axis] = length
    longer = tuple(before) != shape or (isinstance(source, Repeated) and source.longer)
    return Repeated(source, axes, shape, longer)


def _reshape(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    (value,), shape, old = inputs, equation.outvars[0].aval.shape, equation.invars[0].aval.shape
    if isinstance(value, Repeated) and (enlarged := _enlarged(writer, value, shape)):
        return enlarged
    # The length of an axis is free if it is the size of a batch, or a multiple of it.
    lengths = np.array([length if isinstance(length, int) else -1 for length in shape])
    if shape[:1] == old[:1]:
        lengths[0] = 0  # 0 means that the length is the same
    whole = writer.name(value, identity(len(old)))
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


def _transpose(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    tensor, moved = writer.tensor(inputs[0]), equation.params["permutation"]
    return Tensor(tensor.name, tuple(moved.index(axis) for axis in tensor.order))


def _slice(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
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


def _full(
    writer: NetworkWriter, inputs: list[Value], equation: Equation, order: Order | None = None
) -> list[str]:
    """Returns the names of the inputs of an equation; constants get their whole shapes."""
    like = next(value for value in inputs if not isinstance(value, Constant))
    pairs = zip(inputs, equation.invars, strict=True)
    return [writer.full(value, variable.aval.shape, like, order) for value, variable in pairs]


def _concatenate(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    order = next(writer.tensor(value) for value in inputs if not isinstance(value, Constant)).order
    names = _full(writer, inputs, equation, order)
    axis = order.index(equation.params["dimension"])
    return Tensor(writer.graph.op("Concat", *names, axis=axis), order)


def _stack(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    graph, axis = writer.graph, equation.params["axis"]
    full = _full(writer, inputs, equation)
    names = [graph.op("Unsqueeze", name, np.array([axis])) for name in full]
    rank = len(equation.outvars[0].aval.shape)
    return Tensor(graph.op("Concat", *names, axis=axis), identity(rank))


def _split(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> list[Value]:
    tensor, sizes = writer.tensor(inputs[0]), np.array(equation.params["sizes"])
    axis = tensor.order.index(equation.params["axis"])
    names = writer.graph.ops("Split", tensor.name, sizes, names=(None,) * len(sizes), axis=axis)
    return [Tensor(name, tensor.order) for name in names]


def _top_k(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> list[Value]:
    # JAX and ONNX both sort, and both take the first of equal values. The axis is the last one.
    order, most = identity(equation.invars[0].aval.ndim), np.array([equation.params["k"]])
    source = writer.name(inputs[0], order)
    best, places = writer.graph.ops("TopK", source, most, names=(None, None), axis=-1)
    return [Tensor(best, order), Tensor(writer.graph.op("Cast", places, to=INT32), order)]


def _argmax(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    shape = equation.invars[0].aval.shape
    (axis,) = equation.params["axes"]
    name = writer.name(inputs[0], identity(len(shape)))
    best = writer.graph.op("ArgMax", name, axis=axis, keepdims=0)
    return Tensor(writer.graph.op("Cast", best, to=INT32), identity(len(shape) - 1))


def _any(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    rank = len(equation.invars[0].aval.shape)
    marks = writer.graph.op("Cast", writer.name(inputs[0], identity(rank)), to=INT32)
    axes = np.array(equation.params["axes"])
    most = writer.graph.op("ReduceMax", marks, axes, keepdims=0)
    return Tensor(writer.graph.op("Cast", most, to=BOOL), identity(rank - len(axes)))


def _product(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    """Writes `dot_general`: a matrix product, or a sum of products by the names of axes."""
    ranks = [len(variable.aval.shape) for variable in equation.invars]
    names = [writer.name(value, identity(rank)) for value, rank in zip(inputs, ranks, strict=True)]
    rank = len(equation.outvars[0].aval.shape)
    contracted, batch = equation.params["dimension_numbers"]
    if ranks == [2, 2] and (contracted, batch) == (((1,), (0,)), ((), ())):
        return Tensor(writer.graph.op("MatMul", *names), identity(rank))
    letters = iter(ascii_lowercase)
    axes: list[dict[int, str]] = [{}, {}]
    for pair in [*zip(*batch, strict=True), *zip(*contracted, strict=True)]:
        letter = next(letters)
        for operand_axes, axis in zip(axes, pair, strict=True):
            operand_axes[axis] = letter
    words = [
        [operand_axes[axis] if axis in operand_axes else next(letters) for axis in range(length)]
        for operand_axes, length in zip(axes, ranks, strict=True)
    ]
    shared = [axes[0][axis] for axis in batch[0]]
    free = [
        letter
        for word in words
        for letter in word
        if words[0].count(letter) + words[1].count(letter) == 1
    ]
    result = "".join([*shared, *free])
    spec = ",".join("".join(word) for word in words) + "->" + result
    return Tensor(writer.graph.op("Einsum", *names, equation=spec), identity(rank))


def _gather(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    """Writes a gather of whole rows: of one axis, or of the first axes behind a batch's.

    Single numbers are gathered along one axis too, each by an index of its own. A detector has no
    index out of bounds, so the mode of the gather does not matter.
    """
    if isinstance(inputs[1], Constant) and inputs[1].array.ndim == 1:
        return _window(writer, inputs[0], inputs[1].array, equation)
    shapes = [variable.aval.shape for variable in equation.invars]
    numbers, rank = equation.params["dimension_numbers"], len(equation.outvars[0].aval.shape)
    if _is_elementwise(numbers, rank):
        return _gather_elements(writer, inputs, equation)
    batch, taken = len(numbers.operand_batching_dims), tuple(numbers.start_index_map)
    rest = [axis for axis in range(batch, len(shapes[0])) if axis not in taken]
    if tuple(numbers.collapsed_slice_dims) != taken or any(
        equation.params["slice_sizes"][axis] != shapes[0][axis] for axis in rest
    ):
        raise UserError("a gather of parts of rows cannot be written as ONNX")
    graph, (source, places) = writer.graph, _full(writer, inputs, equation)
    places = graph.op("Cast", places, to=INT64)
    if batch:
        # The results of GatherND have JAX's order if the rows' own axes are the last ones.
        assert taken == tuple(range(batch, batch + len(taken)))
        name = graph.op("GatherND", source, places, batch_dims=batch)
        return Tensor(name, identity(rank))
    (axis,) = taken
    places = graph.op("Squeeze", places, np.array([len(shapes[1]) - 1]))
    return Tensor(graph.op("Gather", source, places, axis=axis), identity(rank))


def _is_elementwise(numbers: GatherDimensionNumbers, rank: int) -> bool:
    """Returns whether a gather is `take_along_axis` with axes of a batch on both sides."""
    batch = numbers.operand_batching_dims
    return (
        batch == numbers.start_indices_batching_dims
        and batch != tuple(range(len(batch)))
        and numbers.collapsed_slice_dims == numbers.start_index_map
        and sorted((*batch, *numbers.start_index_map)) == list(range(rank))
    )


def _gather_elements(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    (axis,) = equation.params["dimension_numbers"].start_index_map
    order = identity(len(equation.outvars[0].aval.shape))
    source, places = _full(writer, inputs, equation)
    places = writer.graph.op("Squeeze", places, np.array([len(order)]))
    places = writer.graph.op("Cast", places, to=INT64)
    return Tensor(writer.graph.op("GatherElements", source, places, axis=axis), order)


def _window(writer: NetworkWriter, value: Value, starts: np.ndarray, equation: Equation) -> Value:
    """Writes a gather of one window at a constant place, the form of slices of free lengths."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    name = writer.name(value, identity(len(sizes)))
    if len(starts):
        axes = np.array(numbers.start_index_map)
        ends = starts + np.array([sizes[axis] for axis in axes])
        name = writer.graph.op("Slice", name, starts.astype(np.int64), ends.astype(np.int64), axes)
    if numbers.collapsed_slice_dims:
        name = writer.graph.op("Squeeze", name, np.array(numbers.collapsed_slice_dims))
    return Tensor(name, identity(len(equation.outvars[0].aval.shape)))


def _tile(writer: NetworkWriter, inputs: list[Value], equation: Equation) -> Value:
    repeats = np.array(equation.params["reps"])
    name = writer.name(inputs[0], identity(len(repeats)))
    return Tensor(writer.graph.op("Tile", name, repeats), identity(len(repeats)))


OPERATIONS: dict[str, EquationWriter] = {
    **ARITHMETIC,
    "conv_general_dilated": _convolution,
    "pad": _pad,
    "reduce_window_max": _max_pool,
    "reduce_max": reduction("ReduceMax"),
    "reduce_min": reduction("ReduceMin"),
    "reduce_sum": reduction("ReduceSum"),
    "reduce_or": _any,
    "argmax": _argmax,
    "dot_general": _product,
    "gather": _gather,
    "split": _split,
    "tile": _tile,
    "top_k": _top_k,
    SEARCH.name: search,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
    "stack": _stack,  # of jax 0.10.1 and later; older versions concatenate
}
"""By the names of JAX's primitives."""


def add_program(graph: Graph, traced: TracedProgram, inputs: Sequence[Value]) -> list[str]:
    """Writes a traced program into a graph and returns the names of its results.

    Raises:
        UserError: an operation of the program cannot be written as ONNX.
    """
    writer = NetworkWriter(graph)
    consts = [Constant(np.asarray(array)) for array in traced.consts]
    results = _write(writer, traced.jaxpr, [*consts, *inputs])
    like = next(value for value in inputs if not isinstance(value, Constant))
    names = [
        writer.full(value, aval.shape, like)
        for value, aval in zip(results, traced.out_avals, strict=True)
    ]
    writer.finish()
    return names


def _write(writer: NetworkWriter, jaxpr: Jaxpr, inputs: Sequence[Value]) -> list[Value]:
    names = [*jaxpr.constvars, *jaxpr.invars]
    values: dict[Variable, Value] = dict(zip(names, inputs, strict=True))

    def read(variable: Variable) -> Value:
        if isinstance(variable, Literal):
            return Constant(np.asarray(variable.val, variable.aval.dtype))
        return values[variable]

    for equation in used_equations(jaxpr):
        results = _results(writer, equation, [read(variable) for variable in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _results(writer: NetworkWriter, equation: Equation, inputs: list[Value]) -> list[Value]:
    if (inner := called_program(equation)) is not None:
        consts: list[Value] = [Constant(np.asarray(array)) for array in inner.consts]
        return _write(writer, inner.jaxpr, consts + inputs)
    kind = equation.primitive.name
    known = [value for value in inputs if isinstance(value, Constant)]
    if len(known) == len(inputs):
        return [fold(equation, known)]
    if kind not in OPERATIONS:
        raise UserError(
            f"the network has the operation {kind!r}, which cannot be written as ONNX",
            fix="export it as stablehlo or saved_model",
        )
    results = OPERATIONS[kind](writer, inputs, equation)
    return results if isinstance(results, list) else [results]
