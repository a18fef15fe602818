"""How fast steps go, pauses left out."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np


class Stopwatch:
    """Seconds of training since it was made. What is not training is a pause."""

    def __init__(self) -> None:
        self._began, self._paused = time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far, pauses left out."""
        return time.monotonic() - self._began - self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stands still while it is entered."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - began


@dataclass(frozen=True)
class Stretch:
    """Some steps in a row."""

    images: int
    """Rows of their batches."""
    steps: int
    """How many."""
    seconds: float
    """How long they took, pauses left out."""
    waited: tuple[float, ...]
    """Seconds of it in which a step stood still for the batch of each process."""

    @property
    def images_per_second(self) -> float:
        """Images in a second of training."""
        return self.images / self.seconds

    def rates(self) -> dict[str, float]:
        """Returns what a line of metrics says about speed."""
        rates = {
            "images_per_second": self.images_per_second,
            "steps_per_second": self.steps / self.seconds,
            "waiting_for_data": min(sum(self.waited) / self.seconds, 1.0),
        }
        if len(self.waited) > 1:
            rates["slowest_process"] = float(np.argmax(self.waited))
        return rates


class Waits:
    """Seconds in which steps stood still because a process had no batch."""

    def __init__(self, processes: int) -> None:
        self._of = np.zeros(processes)

    def add(self, waits: np.ndarray) -> None:
        """Takes how long each process has waited before each step, `[N, P]` seconds.

        All wait for the one that waits longest, so the step's wait is put down to that one.
        """
        for step in waits:
            self._of[np.argmax(step)] += step.max()

    def seconds(self) -> tuple[float, ...]:
        """Returns what each process has made the others wait so far."""
        return tuple(self._of.tolist())


class Speedometer:
    """Measures from one look to the next.

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
        """Returns the stretch since the look before.

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
