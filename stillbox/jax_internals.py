"""Interfaces of JAX that are experimental or half private; no other module imports them.

JAX may change them in any release. Each was first seen to work with JAX 0.10.0, the oldest release
that is supported.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, cast

import jax
import jax._src.distributed
import jax._src.xla_bridge

# Shape and type of what a primitive returns, without values.
from jax.core import ShapedArray as ShapedArray

# Collectives between the hosts of a job, outside of a program.
from jax.experimental import multihost_utils as multihost_utils

# Descriptions of devices that are not present, to compile for them.
from jax.experimental import topologies as topologies

# The order of a matrix in memory, which decides how fast XLA's CPU backend multiplies it.
from jax.experimental.layout import Layout as Layout
from jax.experimental.layout import with_layout_constraint as with_layout_constraint

# The mark of a function that XLA is to compile by itself.
from jax.experimental.xla_metadata import set_xla_metadata as set_xla_metadata

# A constant among the variables of a traced program.
from jax.extend.core import Literal as Literal

# Suppression is one operation in traced programs, for which an exporter writes its own.
from jax.extend.core import Primitive as Primitive

# The serial form of StableHLO in the versions of other readers.
from jaxlib.mlir import ir as ir
from jaxlib.mlir.dialects import stablehlo as stablehlo
from jaxlib.mlir.passmanager import PassManager as PassManager


def backend_errors() -> dict[str, str]:
    """Returns why platforms did not start, by name; empty before JAX has started its devices."""
    return dict(getattr(jax._src.xla_bridge, "_backend_errors", {}))


class CoordinationClient(Protocol):
    """A process's client of the coordination service; times are in milliseconds.

    Errors are `RuntimeError`s.
    """

    def key_value_set(self, key: str, value: str) -> None:
        """Stores a value; refuses a key that has one."""

    def blocking_key_value_get(self, key: str, timeout: int) -> str:
        """Waits for a value."""

    def wait_at_barrier(self, barrier: str, timeout: int) -> None:
        """Waits for all processes; the error lists those that do not come."""


def coordination_client() -> CoordinationClient:
    """Returns the client of this process, in a job that is joined."""
    return cast(CoordinationClient, jax._src.distributed.global_state.client)


@contextmanager
def missing_processes_named(seconds: int) -> Iterator[None]:
    """Makes the coordination service that is started while this is entered end the wait for others.

    It lists those that have not come. Otherwise each process gives up by itself and lists none.

    Args:
        seconds: of the wait.
    """
    library = jax._src.distributed._jax
    start = library.get_distributed_runtime_service
    library.get_distributed_runtime_service = partial(start, cluster_register_timeout=seconds)
    try:
        yield
    finally:
        library.get_distributed_runtime_service = start
