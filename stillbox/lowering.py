"""Choices between forms of the same computation, fixed while a program is traced.

A model does not know for which program it is traced: training and prediction take the fastest form
of each operation, and converters to other runtimes need plain ones. Both trace the same layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypedDict, Unpack

CpuConvolutions = Literal["exact", "fast"]

Suppression = Literal["loop", "unrolled", "operation"]

Platform = Literal["cpu", "gpu", "tpu"]

TopK = Literal["operation", "sort"]

Upsampling = Literal["broadcast", "concatenation"]

PoolEdges = Literal["infinite", "repeated"]


@dataclass(frozen=True)
class Lowering:
    """The form of each operation that has several."""

    cpu_convolutions: CpuConvolutions = "exact"
    """Algorithms of convolutions on CPUs: `devices.cpu_convolutions`."""
    portable: bool = False
    """Use the default form of every operation on every platform.

    Converters to other runtimes match whole convolutions and poolings, which the forms for XLA's
    CPU backend hide.
    """
    platform: Platform | None = None
    """Where the program will run. None: the forms of all platforms are traced, and JAX takes one of
    them when it lowers the program."""
    suppression: Suppression = "loop"
    """The search of NMS: a loop, the operations of each of its steps, or one operation."""
    top_k: TopK = "operation"
    """The search of the greatest values: one operation of XLA, which other readers of StableHLO
    may not know, or sorts."""
    upsampling: Upsampling = "broadcast"
    """The repetition of pixels."""
    pool_edges: PoolEdges = "infinite"
    """What stands beyond the edges of a map in a maximum with symmetric padding: minus infinity, or
    the pixel at the edge, which is in the same windows. Integers have no infinity."""


class _Changes(TypedDict, total=False):
    cpu_convolutions: CpuConvolutions
    portable: bool
    platform: Platform | None
    suppression: Suppression
    top_k: TopK
    upsampling: Upsampling
    pool_edges: PoolEdges


_DEFAULT = Lowering()
_LOWERING = ContextVar("lowering", default=_DEFAULT)


def current_lowering() -> Lowering:
    """Returns the choices of the program that is being traced."""
    return _LOWERING.get()


@contextmanager
def lowering(**changes: Unpack[_Changes]) -> Iterator[None]:
    """Traces programs inside it with some fields of the current `Lowering` changed."""
    token = _LOWERING.set(replace(_LOWERING.get(), **changes))
    try:
        yield
    finally:
        _LOWERING.reset(token)


lowering_for_tflite = partial(
    lowering,
    portable=True,
    suppression="unrolled",
    upsampling="concatenation",
    pool_edges="repeated",
)
"""Traces programs for TensorFlow Lite: it has no sort, MediaPipe refuses loops, and broadcasts in
six dimensions take sixty times as long as concatenations."""
