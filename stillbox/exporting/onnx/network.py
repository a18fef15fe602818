"""A detector's network as an ONNX graph, operation by operation of the traced JAX program.

Operations on weights alone are computed at export. Images keep the order N, C, H, W between
convolutions and are transposed at the input and before the predictions only.
"""

from typing import Any

import jax
import numpy as np
from jax.extend import core

from stillbox.errors import UserError
from stillbox.exporting.onnx.arithmetic import fold
from stillbox.exporting.onnx.graph import Graph
from stillbox.exporting.onnx.operations import OPERATIONS
from stillbox.exporting.onnx.values import Known, Tensor, Value, identity
from stillbox.exporting.onnx.writer import NetworkWriter
from stillbox.exporting.program import ExportProgram, Weights
from stillbox.models.layers.lowering.calls import plain_lowering

_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


def add_network(graph: Graph, program: ExportProgram, pixels: str) -> tuple[str, str]:
    """Writes the network and the decoding of boxes and scores into a graph.

    Args:
        graph: nodes are appended to it.
        program: the detector.
        pixels: name of the images `[B, H, W, 3]`, float32, resized and padded.

    Returns:
        Names of boxes `[B, A, 4]` and scores `[B, A, slots]`, see `ExportProgram.decoded`.

    Raises:
        UserError: an operation of the network cannot be written as ONNX.
    """
    # Traced with one image; no node depends on the length of the first axis.
    images = jax.ShapeDtypeStruct((1, *program.input_size, 3), np.float32)

    def network(weights: Weights, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        return program.decoded(program.predictions(weights, images))

    with plain_lowering():
        traced = jax.make_jaxpr(network)(program.weights, images)
    weights = [Known(np.asarray(array)) for array in jax.tree.leaves(program.weights)]
    writer = NetworkWriter(graph)
    consts = [Known(np.asarray(array)) for array in traced.consts]
    inputs: list[Value] = [*weights, Tensor(pixels, identity(4))]
    boxes, scores = _write(writer, traced.jaxpr, [*consts, *inputs])
    names = writer.name(boxes, identity(3)), writer.name(scores, identity(3))
    writer.finish()
    return names


def _write(writer: NetworkWriter, jaxpr: Any, inputs: list[Value]) -> list[Value]:  # noqa: ANN401
    """Writes the equations of a jaxpr as nodes and returns the values of its outputs."""
    names = [*jaxpr.constvars, *jaxpr.invars]
    values: dict[Any, Value] = dict(zip(names, inputs, strict=True))

    def read(variable: Any) -> Value:  # noqa: ANN401
        if isinstance(variable, core.Literal):
            return Known(np.asarray(variable.val))
        return values[variable]

    for equation in jaxpr.eqns:
        results = _results(writer, equation, [read(one) for one in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(one) for one in jaxpr.outvars]


def _results(writer: NetworkWriter, equation: Any, inputs: list[Value]) -> list[Value]:  # noqa: ANN401
    kind = equation.primitive.name
    if kind in _CALLS:
        inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
        consts: list[Value] = [Known(np.asarray(one)) for one in inner.consts]
        return _write(writer, inner.jaxpr, consts + inputs)
    known = [one for one in inputs if isinstance(one, Known)]
    if len(known) == len(inputs):
        return [fold(equation, known)]
    if kind not in OPERATIONS:
        raise UserError(
            f"the network has the operation {kind!r}, which cannot be written as ONNX",
            fix="export it as stablehlo or saved_model",
        )
    return [OPERATIONS[kind](writer, inputs, equation)]
