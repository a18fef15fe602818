"""Functions for one platform, and functions that XLA compiles by themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from stillbox.models.parallel import is_spatially_partitioned

_PLAIN = ContextVar("plain_lowering", default=False)


@contextmanager
def plain_lowering() -> Iterator[None]:
    """Traces programs inside it with the default form of every operation.

    Converters to other runtimes match whole convolutions and poolings, which the forms for XLA's
    CPU backend hide. JAX's caches of traces do not depend on this choice, so they are cleared on
    entry and exit.
    """
    token = _PLAIN.set(True)
    jax.clear_caches()
    try:
        yield
    finally:
        _PLAIN.reset(token)
        jax.clear_caches()


def per_platform(
    *arrays: Any,  # noqa: ANN401
    cpu: Callable[..., Any],
    gpu: Callable[..., Any] | None = None,
    default: Callable[..., Any],
    plain: Callable[..., Any] | None = None,
) -> Any:  # noqa: ANN401
    """Calls `cpu` if the program is lowered for a CPU, `gpu` (if any) for a GPU, else `default`.

    All are called with the given arrays, or pytrees of them. Inside `plain_lowering` it is `plain`,
    if any, else `default`.

    If devices share images, `default` is used everywhere: XLA can divide an operation of its own
    along the height, but turns shifted views into right, slow code.
    """
    if _PLAIN.get():
        return (plain or default)(*arrays)
    if is_spatially_partitioned():
        return default(*arrays)
    own = {} if gpu is None else {"cuda": gpu, "rocm": gpu}
    return jax.lax.platform_dependent(*arrays, cpu=cpu, default=default, **own)


def standalone(function: Callable[..., Any], **static: Any) -> Callable[..., Any]:  # noqa: ANN401
    """Keeps `function` a call in the compiled program.

    XLA's CPU backend fuses a cheap operation into each of its consumers and computes it again
    there: nine shifted products once for either sum of a batch norm and once more for its result.
    Fusion does not cross a call.

    Args:
        function: of arrays, defined at module level.
        static: fixed keyword arguments.
    """
    compiled = jax.jit(function, static_argnames=tuple(static))

    def call(*arrays: jax.Array) -> Any:  # noqa: ANN401
        # As a context manager the attribute would also mark the calls inside.
        return set_xla_metadata(compiled(*arrays, **static), inlineable="false")

    return call
