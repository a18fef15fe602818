"""The interface of an observer of steps.

It stands alone because training, profiling and prediction share it, and prediction by an exported
model imports no JAX.
"""

from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")


class StepObserver:
    """Observes the steps of a loop, as `profiling.profiler.StepProfiler`; this one does nothing."""

    def mark(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yields the items. A step lasts from one request for an item to the next."""
        return items

    def dispatched(self, result: object) -> None:
        """Receives arrays that the step computes: it is done when they are ready."""


NO_OBSERVER = StepObserver()
