"""A traced JAX program as an ONNX graph, operation by operation.

Operations on weights alone are computed at export. Images keep the order N, C, H, W between
convolutions and are transposed at the input and before the predictions only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from stillbox.boxes.nms import opaque_nms
from stillbox.errors import UserError
from stillbox.exporting.onnx.arithmetic import fold
from stillbox.exporting.onnx.graph import Graph
from stillbox.exporting.onnx.operations import OPERATIONS
from stillbox.exporting.onnx.values import Known, Value
from stillbox.exporting.onnx.writer import NetworkWriter
from stillbox.models.layers.lowering.calls import plain_lowering

_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


def trace(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """Returns the program of a function, in which the search of NMS is one operation.

    Args:
        function: of arrays, or pytrees of them.
        arguments: arrays or shapes; `BATCH` is a free length of the first axis.
    """
    with plain_lowering(), opaque_nms():
        return jax.make_jaxpr(function)(*arguments)


def add_program(graph: Graph, traced: Any, inputs: Sequence[Value]) -> list[str]:  # noqa: ANN401
    """Writes a traced program into a graph and returns the names of its results.

    Raises:
        UserError: an operation of the program cannot be written as ONNX.
    """
    writer = NetworkWriter(graph)
    consts = [Known(np.asarray(array)) for array in traced.consts]
    results = _write(writer, traced.jaxpr, [*consts, *inputs])
    like = next(one for one in inputs if not isinstance(one, Known))
    names = [
        writer.full(one, aval.shape, like)
        for one, aval in zip(results, traced.out_avals, strict=True)
    ]
    writer.finish()
    return names


def operations(jaxpr: Any) -> set[str]:  # noqa: ANN401
    """Returns the names of the operations that results of a jaxpr depend on."""
    names: set[str] = set()
    for equation in _used(jaxpr, jaxpr.outvars):
        inner = _inner(equation)
        names |= {equation.primitive.name} if inner is None else operations(inner.jaxpr)
    return names


def _write(writer: NetworkWriter, jaxpr: Any, inputs: list[Value]) -> list[Value]:  # noqa: ANN401
    """Writes the equations of a jaxpr as nodes and returns the values of its outputs."""
    names = [*jaxpr.constvars, *jaxpr.invars]
    values: dict[Any, Value] = dict(zip(names, inputs, strict=True))

    def read(variable: Any) -> Value:  # noqa: ANN401
        if isinstance(variable, core.Literal):
            dtype = variable.aval.dtype  # type: ignore[attr-defined]
            return Known(np.asarray(variable.val, dtype))
        return values[variable]

    for equation in _used(jaxpr, jaxpr.outvars):
        results = _results(writer, equation, [read(one) for one in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(one) for one in jaxpr.outvars]


def _used(jaxpr: Any, results: Sequence[Any]) -> list[Any]:  # noqa: ANN401
    """Returns the equations that results depend on, in order."""
    wanted, used = {one for one in results if not isinstance(one, core.Literal)}, []
    for equation in reversed(jaxpr.eqns):
        if not wanted.isdisjoint(equation.outvars):
            used.append(equation)
            wanted |= {one for one in equation.invars if not isinstance(one, core.Literal)}
    return used[::-1]


def _inner(equation: Any) -> Any:  # noqa: ANN401
    """Returns the program that an equation calls; None if it calls none."""
    if equation.primitive.name not in _CALLS:
        return None
    return equation.params.get("jaxpr") or equation.params["call_jaxpr"]


def _results(writer: NetworkWriter, equation: Any, inputs: list[Value]) -> list[Value]:  # noqa: ANN401
    if (inner := _inner(equation)) is not None:
        consts: list[Value] = [Known(np.asarray(one)) for one in inner.consts]
        return _write(writer, inner.jaxpr, consts + inputs)
    kind = equation.primitive.name
    known = [one for one in inputs if isinstance(one, Known)]
    if len(known) == len(inputs):
        return [fold(equation, known)]
    if kind not in OPERATIONS:
        raise UserError(
            f"the network has the operation {kind!r}, which cannot be written as ONNX",
            fix="export it as stablehlo or saved_model",
        )
    results = OPERATIONS[kind](writer, inputs, equation)
    return results if isinstance(results, list) else [results]
