"""Dynamic batching: images of different requests run together, in batches of a few fixed sizes.

One thread runs the model; the images that arrive during a run form the next batch. Each size is
compiled before the first request.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from stillbox.evaluation.results import not_finite
from stillbox.predicting.backend import Backend, Prepared, RawDetections

# At the start each size is measured by this many runs, or by those that begin in these seconds.
_RUNS, _MEASURING_SECONDS = 5, 1.0


class ClosedError(Exception):
    """The batcher takes no more images: `close` was called, or its thread has failed."""


class BatchRun(NamedTuple):
    """Measurements of one run of the model."""

    images: int
    size: int
    """Rows of the batch; those beyond `images` are padding."""
    seconds: float


class _Job(NamedTuple):
    prepared: Prepared
    found: "Future[RawDetections]"
    since: float


class Batcher:
    """Runs a backend on batches of submitted images.

    Args:
        sizes: rows of a batch, ascending.
        max_delay: seconds that an image waits for others while nothing runs.
        observe: called after each run, in the thread that runs the model.
        expects_more: whether further images may arrive soon; if not, there is no delay.
    """

    def __init__(
        self,
        backend: Backend,
        sizes: Sequence[int],
        max_delay: float,
        observe: Callable[[BatchRun], None] = lambda run: None,
        expects_more: Callable[[], bool] = lambda: True,
    ) -> None:
        self._backend, self.sizes, self._max_delay = backend, tuple(sizes), max_delay
        self._observe, self._expects_more = observe, expects_more
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="model", daemon=True)
        self.seconds: dict[int, float] = {}
        """The fastest run of each size at the start."""
        self.prepared_bytes = 0
        """Memory of a small prepared image."""

    def start(self, report: Callable[[str], None] = lambda text: None) -> None:
        """Compiles and measures every size, then starts the thread that runs the model.

        `report` is called with a line of progress for each size.

        Raises:
            UserError: the model's predictions are not finite.
        """
        blank = self._backend.prepare(np.zeros((64, 64, 3), np.uint8))
        self.prepared_bytes = blank.pixels.nbytes
        for size in self.sizes:
            first = self._time([blank] * size)
            runs = [self._time([blank] * size)]
            while len(runs) < _RUNS and sum(runs) < _MEASURING_SECONDS:
                runs.append(self._time([blank] * size))
            self.seconds[size] = min(runs)
            report(f"batch of {size}: ready after {first:.1f} s, {1000 * min(runs):.0f} ms a run")
        self._thread.start()

    def _time(self, images: Sequence[Prepared]) -> float:
        began = time.perf_counter()
        found = self._backend.run(images)
        if not all(one.finite for one in found):
            raise not_finite("a blank image")
        return time.perf_counter() - began

    @property
    def alive(self) -> bool:
        """Whether the thread of the model is running."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Images that wait for the model."""
        return len(self._jobs)

    def seconds_for(self, images: int) -> float:
        """Estimates the time for a number of images, by the runs at the start."""
        return images * min(self.seconds[size] / size for size in self.sizes)

    def submit(self, prepared: Prepared) -> "Future[RawDetections]":
        """Adds an image. If its future is cancelled before its batch begins, it does not run.

        Raises:
            ClosedError: there is no thread that would run it.
        """
        job = _Job(prepared, Future(), time.monotonic())
        with self._changed:
            if self._closed:
                raise ClosedError
            self._jobs.append(job)
            self._changed.notify()
        job.found.add_done_callback(self._forget)
        return job.found

    def _forget(self, found: "Future[RawDetections]") -> None:
        """Removes a cancelled image at once; many could pile up during a long run."""
        if found.cancelled():
            with self._changed:
                self._jobs = deque(job for job in self._jobs if job.found is not found)

    def close(self) -> None:
        """Refuses further images, finishes the submitted ones, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _serve(self) -> None:
        try:
            while (jobs := self._next_jobs()) is not None:
                # Leaves out cancelled futures.
                jobs = [job for job in jobs if job.found.set_running_or_notify_cancel()]
                if jobs:
                    self._run(jobs)
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """Refuses further images, and fails those that wait for the ended thread."""
        with self._changed:
            self._closed = True
            left, self._jobs = self._jobs, deque()
        for job in left:
            if job.found.set_running_or_notify_cancel():
                job.found.set_exception(ClosedError())

    def _next_jobs(self) -> list[_Job] | None:
        """Waits for images and returns the next batch; None after `close`."""
        largest = self.sizes[-1]
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return None
            patience = self._jobs[0].since + self._max_delay - time.monotonic()
            self._changed.wait_for(
                lambda: len(self._jobs) >= largest or self._closed or not self._expects_more(),
                timeout=max(patience, 0),
            )
            # All waiting images may have been cancelled.
            images = self._images_to_run(len(self._jobs)) if self._jobs else 0
            return [self._jobs.popleft() for _ in range(images)]

    def _images_to_run(self, waiting: int) -> int:
        """Returns how many of the waiting images to run, for the least time per image.

        The estimate uses the runs at the start. An accelerator needs about the same time for all
        sizes, so all images run, padded to the next size. On a CPU it is often a smaller, full
        batch.
        """
        best = min(self.sizes, key=lambda s: (self.seconds[s] / min(s, waiting), -s))
        return min(best, waiting)

    def _run(self, jobs: list[_Job]) -> None:
        size = next(size for size in self.sizes if size >= len(jobs))
        images = [job.prepared for job in jobs]
        began = time.perf_counter()
        try:
            found = self._backend.run([*images, *[images[-1]] * (size - len(images))])
            self._observe(BatchRun(len(jobs), size, time.perf_counter() - began))
            results = list(zip(jobs, found[: len(jobs)], strict=True))
        except BaseException as error:  # Runtimes can raise any exception.
            is_fatal = not isinstance(error, Exception)
            for job in jobs:
                job.found.set_exception(ClosedError() if is_fatal else error)
            if is_fatal:
                raise
            return
        for job, one in results:
            job.found.set_result(one)
