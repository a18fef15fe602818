"""Functions for one platform alone, and functions that XLA compiles by themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from stillbox.models.parallel import images_are_cut

_PLAIN = ContextVar("plain_lowering", default=False)


@contextmanager
def plain_lowering() -> Iterator[None]:
    """Makes programs that are traced inside it use the default form of every operation.

    Converters to other runtimes look for whole convolutions and poolings. What suits XLA's CPU
    backend would hide these from them. The caches of traces are cleared on both sides: they do not
    know of this choice.
    """
    token = _PLAIN.set(True)
    jax.clear_caches()
    try:
        yield
    finally:
        _PLAIN.reset(token)
        jax.clear_caches()


def per_platform(
    *arrays: jax.Array,
    cpu: Callable[..., Any],
    gpu: Callable[..., Any] | None = None,
    default: Callable[..., Any],
) -> Any:  # noqa: ANN401
    """Calls `cpu` where the program is lowered for a CPU, and `default` everywhere else.

    Where devices share images, `default` is for all: XLA knows how to divide an operation of its
    own along the height, and what it would make of shifted views is right but slow.

    Args:
        arrays: arguments of both.
        cpu: the CPU's form.
        gpu: that of GPUs, if they have one of their own.
        default: that of all other platforms.
    """
    if _PLAIN.get() or images_are_cut():
        return default(*arrays)
    own = {} if gpu is None else {"cuda": gpu, "rocm": gpu}
    return jax.lax.platform_dependent(*arrays, cpu=cpu, default=default, **own)


def standalone(function: Callable[..., Any], **static: Any) -> Callable[..., Any]:  # noqa: ANN401
    """Keeps `function` a call in the compiled program instead of dissolving it.

    XLA's CPU backend draws a cheap operation into each of its consumers and computes it anew
    there: nine shifted products once for either sum of a batch norm and once more for its result.
    A call is a border that fusion does not cross.

    Args:
        function: of arrays, defined at module level.
        static: its keyword arguments, fixed here.
    """
    compiled = jax.jit(function, static_argnames=tuple(static))

    def call(*arrays: jax.Array) -> Any:  # noqa: ANN401
        # As a context the mark would also stick to the calls inside; here it is the result's own.
        return set_xla_metadata(compiled(*arrays, **static), inlineable="false")

    return call
