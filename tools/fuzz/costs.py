"""Time and memory of a reader against the size of its input.

A reader takes a fixed time and memory, and more in proportion to the bytes that came. An input that
takes more has found a size that multiplies.
"""

import time
import tracemalloc
from collections.abc import Callable, Iterable
from typing import NamedTuple

BYTES_A_BYTE, SECONDS_A_BYTE = 200, 1e-6
"""Memory and processor time for a byte of an input: 200 bytes, and 1 s for 1 MB."""
# The dearest seed stands for what does not depend on the size, and for the noise of a busy machine.
_TIMES, _LEAST_SECONDS, _LEAST_BYTES = 5, 0.1, 2**20


class Cost(NamedTuple):
    """What one input took."""

    seconds: float
    """Of processor time."""
    memory: int
    """Greatest number of bytes that Python and numpy held at once."""


def cost_of(read: Callable[[], object]) -> Cost:
    """Returns what a call takes; its exceptions pass."""
    tracemalloc.start()
    try:
        began = time.process_time()
        read()
        return Cost(time.process_time() - began, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


class Budget:
    """What an input may take, by its size.

    Args:
        seeds: what sound inputs took.
    """

    def __init__(self, seeds: Iterable[Cost]) -> None:
        costs = list(seeds)
        self._seconds = max([_LEAST_SECONDS, *(_TIMES * cost.seconds for cost in costs)])
        self._memory = max([_LEAST_BYTES, *(_TIMES * cost.memory for cost in costs)])

    def excess(self, size: int, cost: Cost) -> str:
        """Returns what an input of so many bytes took too much of; empty if nothing."""
        if cost.memory > self._memory + BYTES_A_BYTE * size:
            return f"over {BYTES_A_BYTE} bytes a byte"
        if cost.seconds > self._seconds + SECONDS_A_BYTE * size:
            return "over 1 s a megabyte"
        return ""
