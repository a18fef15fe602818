"""Rematerialisation: the backward pass computes activations of blocks again (arXiv:1604.06174).

The gradient keeps nothing of a block but its inputs. Results are the same numbers, and moving
statistics are updated once.
"""

from collections.abc import Callable
from contextvars import copy_context
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.layers.lowering.primitives import per_platform
from stillbox.models.parts import Part
from stillbox.models.variables import (
    Arrays,
    bind_detector,
    read_statistics,
    split_detector,
    write_statistics,
)

_Part = TypeVar("_Part", bound=Part)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_Output = TypeVar("_Output", bound=tuple[object, Arrays])

Activations = dict[int, jax.Array]
_Inputs = tuple[Arrays, Arrays, Activations]


def set_rematerialization(module: nnx.Module, kind: schema.Rematerialization) -> None:
    """Sets whether the blocks of a module are rematerialised: `train.rematerialization`."""
    rematerialize = kind == "blocks"
    module.set_attributes(Part, rematerialize=rematerialize, raise_if_not_found=False)


def rematerialized(
    method: Callable[Concatenate[_Part, _Given], _Result],
) -> Callable[Concatenate[_Part, _Given], _Result]:
    """Makes a method of a part a block for `set_rematerialization`.

    The method takes and returns trees of float arrays `[B, ...]`, and changes no variables but the
    statistics of its part. A block inside another one is not rematerialised separately.
    """

    @wraps(method)
    def call(self: _Part, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        if not self.rematerialize:
            return method(self, *args, **kwargs)
        # The backward pass is traced later, after what surrounds the forward pass has ended.
        context = copy_context()
        graph, params, stats = split_detector(self)
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = {number: leaf for number, leaf in enumerate(leaves) if _is_activation(leaf)}

        def compute(params: Arrays, stats: Arrays, arrays: Activations) -> tuple[_Result, Arrays]:
            part: _Part = bind_detector(graph, params, stats)
            set_rematerialization(part, "none")
            merged = [arrays.get(number, leaf) for number, leaf in enumerate(leaves)]
            given, named = jax.tree.unflatten(tree, merged)
            result = context.copy().run(method, part, *given, **named)
            return result, read_statistics(part)

        result, updated = _computed_again(compute)(params, stats, arrays)
        write_statistics(self, updated)
        return result

    return call


def _is_activation(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)


def _computed_again(
    function: Callable[[Arrays, Arrays, Activations], _Output],
) -> Callable[[Arrays, Arrays, Activations], _Output]:
    """Returns a function with a gradient that keeps nothing but its arguments.

    The arguments are parameters, statistics and activations; the result is a pair of activations
    and statistics. `jax.checkpoint` does not suffice: XLA's compiler for CPUs removes the barrier
    that separates the two computations, and then merges them.
    """

    def forward(params: Arrays, stats: Arrays, arrays: Activations) -> tuple[_Output, _Inputs]:
        return function(params, stats, arrays), (params, stats, arrays)

    def backward(inputs: _Inputs, gradient: _Output) -> _Inputs:
        params, stats, arrays = inputs
        arrays, gradient = per_platform(arrays, gradient, cpu=_after, default=_barrier)
        gradients: _Inputs = jax.vjp(function, params, stats, arrays)[1](gradient)
        return gradients

    computed = jax.custom_vjp(function)
    computed.defvjp(forward, backward)
    return computed


def _barrier(arrays: Activations, gradient: _Output) -> tuple[Activations, _Output]:
    kept: tuple[Activations, _Output] = jax.lax.optimization_barrier((arrays, gradient))
    return kept


def _after(arrays: Activations, gradient: _Output) -> tuple[Activations, _Output]:
    """Adds a zero to the arrays that the compiler cannot compute before the gradient."""
    # One value of each image: devices have different images.
    first = [leaf.reshape(leaf.shape[0], -1)[:, 0] for leaf in jax.tree.leaves(gradient[0])]
    nothing = 0 * sum(leaf.astype(jnp.float32) for leaf in first)

    def add(array: jax.Array) -> jax.Array:
        return array + nothing.astype(array.dtype).reshape(-1, *[1] * (array.ndim - 1))

    return {number: add(array) for number, array in arrays.items()}, gradient
