"""Dynamic batching: images of different requests run together, in batches of a few fixed sizes.

One thread runs the model. While it runs, images gather; when it is free it takes those that wait,
as many as one run is good for. Each size is compiled before the first request.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from stillbox.predicting.backend import Backend, Found, Prepared

# Of each size at the start: the fastest of so many runs, or of as many as begin in so many seconds.
_RUNS, _MEASURING = 5, 1.0


class Closed(Exception):  # noqa: N818  # it is no fault
    """The batcher takes no more images."""


class BatchRun(NamedTuple):
    """What one run of the model was, for those who measure."""

    images: int
    """Images that somebody waits for."""
    size: int
    """Rows of the batch; the rest were copies that filled it up."""
    seconds: float
    """How long it took."""


class _Job(NamedTuple):
    prepared: Prepared
    found: "Future[Found]"
    since: float


class Batcher:
    """Runs a backend on batches of the images that come.

    Args:
        backend: runs the model.
        sizes: rows of a batch, rising.
        max_delay: seconds that an image waits for others while nothing runs.
        observe: is told about each run, in the thread that runs the model.
        more: whether any image may come soon; nothing waits for none.
    """

    def __init__(
        self,
        backend: Backend,
        sizes: Sequence[int],
        max_delay: float,
        observe: Callable[[BatchRun], None] = lambda run: None,
        more: Callable[[], bool] = lambda: True,
    ) -> None:
        self._backend, self.sizes, self._max_delay = backend, tuple(sizes), max_delay
        self._observe, self._more = observe, more
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="model", daemon=True)
        self.seconds: dict[int, float] = {}
        """The fastest run of each size at the start."""

    def start(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Compiles every size, measures a run of it, and starts the thread that runs the model.

        Args:
            say: is told what takes a while.
        """
        blank = self._backend.prepare(np.zeros((64, 64, 3), np.uint8))
        for size in self.sizes:
            first = self._time([blank] * size)
            runs = [self._time([blank] * size)]
            while len(runs) < _RUNS and sum(runs) < _MEASURING:
                runs.append(self._time([blank] * size))
            self.seconds[size] = min(runs)
            say(f"batch of {size}: ready after {first:.1f} s, {1000 * min(runs):.0f} ms a run")
        self._thread.start()

    def _time(self, images: Sequence[Prepared]) -> float:
        began = time.perf_counter()
        self._backend.run(images)
        return time.perf_counter() - began

    @property
    def waiting(self) -> int:
        """Images that wait for the model."""
        return len(self._jobs)

    def seconds_for(self, images: int) -> float:
        """Returns about how long this many images take, by the runs at the start."""
        return images * min(self.seconds[size] / size for size in self.sizes)

    def submit(self, prepared: Prepared) -> "Future[Found]":
        """Takes an image. A future that is cancelled before its batch begins does not run.

        Raises:
            Closed: `close` was called.
        """
        job = _Job(prepared, Future(), time.monotonic())
        with self._changed:
            if self._closed:
                raise Closed
            self._jobs.append(job)
            self._changed.notify()
        return job.found

    def close(self) -> None:
        """Takes no more images, finishes those that were taken, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _serve(self) -> None:
        while (jobs := self._next_jobs()) is not None:
            # Nobody waits any more for what was cancelled.
            jobs = [job for job in jobs if job.found.set_running_or_notify_cancel()]
            if jobs:
                self._run(jobs)

    def _next_jobs(self) -> list[_Job] | None:
        """Waits for images and takes them; None when there will be no more."""
        largest = self.sizes[-1]
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return None
            patience = self._jobs[0].since + self._max_delay - time.monotonic()
            self._changed.wait_for(
                lambda: len(self._jobs) >= largest or self._closed or not self._more(),
                timeout=max(patience, 0),
            )
            return [self._jobs.popleft() for _ in range(self._portion(len(self._jobs)))]

    def _portion(self, waiting: int) -> int:
        """Returns how many of the waiting images to run now: what takes the least time for each.

        Where a run takes as long for any size, as on an accelerator, that is all of them, filled
        up to the next size; on a CPU it is often a smaller batch that is full. The runs at the
        start tell.
        """
        best = min(self.sizes, key=lambda s: (self.seconds[s] / min(s, waiting), -s))
        return min(best, waiting)

    def _run(self, jobs: list[_Job]) -> None:
        size = next(size for size in self.sizes if size >= len(jobs))
        images = [job.prepared for job in jobs]
        began = time.perf_counter()
        try:
            found = self._backend.run([*images, *[images[-1]] * (size - len(images))])
        except Exception as error:  # whatever a runtime raises belongs to those who wait for it
            for job in jobs:
                job.found.set_exception(error)
            return
        self._observe(BatchRun(len(jobs), size, time.perf_counter() - began))
        for job, one in zip(jobs, found, strict=False):
            job.found.set_result(one)
