"""Operations of a network, counted in its program; nothing is computed."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.lowering import lowering
from stillbox.models.build import abstract_detector
from stillbox.models.detector import detect_function


def forward_operations(model: schema.Model) -> int:
    """Returns the operations of a detector's convolutions for one image; a multiply-add is two.

    Raises:
        UserError: the model cannot be built.
    """
    detector = abstract_detector(model, "float32")
    image = jax.ShapeDtypeStruct((1, *model.network_size, model.image_kind.channels), jnp.float32)
    true_size = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    function = detect_function(detector.graph)
    return count_operations(function, detector.params, detector.stats, image, true_size)


def count_operations(
    function: Callable[..., Any],
    *arguments: Any,  # noqa: ANN401
    primitive: str = "conv_general_dilated",
) -> int:
    """Returns the operations of all convolutions or, with `dot_general`, of products of matrices.

    A multiply-add is two; nothing else counts.
    """
    with lowering(portable=True):
        program = jax.make_jaxpr(function)(*arguments)
    equations = [e for e in _equations(program.jaxpr) if e.primitive.name == primitive]
    return 2 * sum(map(_multiply_adds, equations))


def _equations(program: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yields the equations of a program and of all programs inside it."""
    for equation in program.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner := getattr(inner, "jaxpr", inner), "eqns"):
                yield from _equations(inner)


def _multiply_adds(equation: Any) -> int:  # noqa: ANN401
    first, kernel = (variable.aval.shape for variable in equation.invars)
    results = math.prod(equation.outvars[0].aval.shape)
    if equation.primitive.name == "dot_general":
        (summed, _), _ = equation.params["dimension_numbers"]
        return results * math.prod(first[axis] for axis in summed)
    # Kernels are HWIO, and in a depthwise one there is one input a group.
    return results * math.prod(kernel[:3])
