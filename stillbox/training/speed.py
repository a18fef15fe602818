"""Speed of steps, without pauses."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np


class Stopwatch:
    """Seconds since construction, without pauses."""

    def __init__(self) -> None:
        self._began, self._paused = time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far, without pauses."""
        return time.monotonic() - self._began - self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses while it is entered."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - began


@dataclass(frozen=True)
class Stretch:
    """Successive steps."""

    images: int
    """Rows of their batches."""
    steps: int
    """Number of steps."""
    seconds: float
    """Their time, without pauses."""
    waited: tuple[float, ...]
    """Seconds of it that steps waited for the batch of each process."""

    @property
    def images_per_second(self) -> float:
        """Images per second of training."""
        return self.images / self.seconds

    def rates(self) -> dict[str, float]:
        """Returns the speed as metrics by name."""
        rates = {
            "images_per_second": self.images_per_second,
            "steps_per_second": self.steps / self.seconds,
            "waiting_for_data": min(sum(self.waited) / self.seconds, 1.0),
        }
        if len(self.waited) > 1:
            rates["slowest_process"] = float(np.argmax(self.waited))
        return rates


class Waits:
    """Seconds that steps waited because a process had no batch."""

    def __init__(self, processes: int) -> None:
        self._of = np.zeros(processes)

    def add(self, waits: np.ndarray) -> None:
        """Adds the time that each process has waited before each step, `[N, P]` seconds.

        All processes wait for the slowest, to which the wait of a step is attributed.
        """
        for step in waits:
            self._of[np.argmax(step)] += step.max()

    def seconds(self) -> tuple[float, ...]:
        """Returns the seconds that each process has made the others wait."""
        return tuple(self._of.tolist())


class Speedometer:
    """Measures the steps between two calls of `look`.

    Args:
        stopwatch: what time it is.
        batch_size: images of a step.
        waited: seconds so far in which a step stood still for the batch of each process.
    """

    def __init__(
        self, stopwatch: Stopwatch, batch_size: int, waited: Callable[[], tuple[float, ...]]
    ) -> None:
        self._stopwatch, self._batch_size, self._waited = stopwatch, batch_size, waited
        self._steps, self._at, self._waited_by_then = 0, stopwatch.seconds, waited()
        self._stretch = Stretch(0, 0, 1e-9, (0.0,))

    def look(self, steps: int) -> Stretch:
        """Returns the steps since the last call.

        Args:
            steps: done so far. As many as at the look before: the same stretch again.
        """
        done = steps - self._steps
        if not done:
            return self._stretch
        now, waited = self._stopwatch.seconds, self._waited()
        self._stretch = Stretch(
            images=done * self._batch_size,
            steps=done,
            seconds=max(now - self._at, 1e-9),
            waited=tuple(np.subtract(waited, self._waited_by_then).tolist()),
        )
        self._steps, self._at, self._waited_by_then = steps, now, waited
        return self._stretch
