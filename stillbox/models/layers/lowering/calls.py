"""Functions that XLA compiles by themselves."""

from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata


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
