"""A traced JAX program (jaxpr): what is read of it, and which of it the results depend on."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, cast

import jax
import numpy as np

from stillbox.jax_internals import Literal, Primitive
from stillbox.lowering import lowering


class ArrayType(Protocol):
    """Type and shape of an array; the first length may be free."""

    shape: tuple[int, ...]
    dtype: np.dtype
    ndim: int


class Variable(Hashable, Protocol):
    """An array of the program, or a `Literal`."""

    aval: ArrayType


class Equation(Protocol):
    """One operation of the program."""

    primitive: Primitive
    params: Mapping[str, Any]
    invars: Sequence[Variable]
    outvars: Sequence[Variable]


class Jaxpr(Protocol):
    """A program without the values of its constants."""

    constvars: Sequence[Variable]
    invars: Sequence[Variable]
    eqns: Sequence[Equation]
    outvars: Sequence[Variable]


class TracedProgram(Protocol):
    """JAX's `ClosedJaxpr`; its own annotations lack shapes and types."""

    jaxpr: Jaxpr
    consts: Sequence[jax.Array]
    out_avals: Sequence[ArrayType]


_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


def trace(function: Callable[..., object], *arguments: object) -> TracedProgram:
    """Returns the program of a function, in which the search of NMS is one operation.

    Args:
        function: of arrays, or pytrees of them.
        arguments: arrays or shapes; `BATCH` is a free length of the first axis.
    """
    with lowering(portable=True, suppression="operation"):
        return cast(TracedProgram, jax.make_jaxpr(function)(*arguments))


def operations(jaxpr: Jaxpr) -> set[str]:
    """Returns the names of the operations that results of a program depend on."""
    names: set[str] = set()
    for equation in used_equations(jaxpr):
        inner = called_program(equation)
        names |= {equation.primitive.name} if inner is None else operations(inner.jaxpr)
    return names


def used_equations(jaxpr: Jaxpr) -> list[Equation]:
    """Returns the equations that results depend on, in order."""
    wanted, used = _variables(jaxpr.outvars), []
    for equation in reversed(jaxpr.eqns):
        if not wanted.isdisjoint(equation.outvars):
            used.append(equation)
            wanted |= _variables(equation.invars)
    return used[::-1]


def _variables(atoms: Sequence[Variable]) -> set[Variable]:
    return {atom for atom in atoms if not isinstance(atom, Literal)}


def called_program(equation: Equation) -> TracedProgram | None:
    """Returns the program that an equation calls; None if it calls none."""
    if equation.primitive.name not in _CALLS:
        return None
    called: TracedProgram = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
    return called
