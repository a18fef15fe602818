"""Somebody who looks on while a model works through its batches."""

from collections.abc import Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


class StepWatch:
    """Is told of every step. This one looks away; `profiling.profiler.StepProfiler` does not."""

    def mark(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yields the items. A step is all from asking for one to asking for the next."""
        return items

    def dispatched(self, result: Any) -> None:  # noqa: ANN401
        """Is told what tells when the step is done: arrays that it makes."""


UNWATCHED = StepWatch()
"""Nobody looks on."""
