"""Dynamic batching: images of different requests run together, in batches of a few fixed sizes.

Few threads run the model; the images that arrive meanwhile form the next batch. Each size is
compiled before the first request.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from stillbox.evaluation.results import RawDetections, not_finite
from stillbox.predicting.backend import Backend, Prepared

# At the start each size is measured by this many runs, or by those that begin in these seconds.
_RUNS, _MEASURING_SECONDS = 5, 1.0
# Batches at a time are measured with runs of at most so many seconds, and taken if they make the
# model faster by so much. Twice as many take twice the memory.
_SHORT_RUN, _MOST_RUNS, _WORTH = 0.25, 20, 1.08


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
    result: "Future[RawDetections]"
    since: float


class Batcher:
    """Runs a backend on batches of submitted images.

    Args:
        sizes: rows of a batch, ascending.
        max_delay: seconds that an image waits for others while a thread of the model is free.
        observe: called after each run, in the thread that runs the model.
        expects_more: whether further images may arrive soon; if not, there is no delay.
        at_once: batches that run at the same time; 0: as many as `start` finds to be fastest.
        most_at_once: the most that are measured.
    """

    def __init__(
        self,
        backend: Backend,
        sizes: Sequence[int],
        max_delay: float,
        observe: Callable[[BatchRun], None] = lambda run: None,
        expects_more: Callable[[], bool] = lambda: True,
        at_once: int = 1,
        most_at_once: int = 1,
    ) -> None:
        self._backend, self.sizes, self._max_delay = backend, tuple(sizes), max_delay
        self._observe, self._expects_more = observe, expects_more
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        # One thread at a time collects a batch.
        self._collecting = threading.Lock()
        self._at_once, self._most_at_once = at_once, most_at_once
        self._threads: list[threading.Thread] = []
        self.running = 0
        """Images in the batches that run."""
        self.seconds: dict[int, float] = {}
        """The fastest run of each size at the start."""
        self.prepared_bytes = 0
        """Memory of a small prepared image."""

    def start(self, report: Callable[[str], None] = lambda text: None) -> None:
        """Compiles and measures every size, then starts the threads that run the model.

        `report` is called with a line of progress for each size.

        Raises:
            UserError: the model's predictions are not finite.
        """
        kind = self._backend.image_kind
        blank = self._backend.prepare(np.zeros((64, 64, kind.channels), kind.dtype))
        self.prepared_bytes = blank.pixels.nbytes
        for size in self.sizes:
            first = self._time([blank] * size)
            runs = [self._time([blank] * size)]
            while len(runs) < _RUNS and sum(runs) < _MEASURING_SECONDS:
                runs.append(self._time([blank] * size))
            self.seconds[size] = min(runs)
            report(f"batch of {size}: ready after {first:.1f} s, {1000 * min(runs):.0f} ms a run")
        at_once = self._at_once or self._fastest_at_once(blank)
        if at_once > 1:
            report(f"{at_once} batches run at a time")
        for _ in range(at_once):
            self._threads.append(threading.Thread(target=self._serve, name="model", daemon=True))
            self._threads[-1].start()

    def _fastest_at_once(self, blank: Prepared) -> int:
        """Returns how many batches at a time give the most images a second.

        One run hardly keeps all cores busy.
        """
        short = [size for size in self.sizes if self.seconds[size] <= _SHORT_RUN] or self.sizes[:1]
        size = min(short, key=lambda size: self.seconds[size] / size)
        images, count = [blank] * size, 1
        runs = min(max(1, round(_SHORT_RUN / self.seconds[size])), _MOST_RUNS)
        while 2 * count <= self._most_at_once:
            # In turns: a machine that other programs use is slow for a while.
            rounds = [
                [self._time_at_once(images, threads, runs) for threads in (count, 2 * count)]
                for _ in range(2)
            ]
            seconds, more = map(min, zip(*rounds, strict=True))
            if more * _WORTH > 2 * seconds:
                break
            count *= 2
        return count

    def _time_at_once(self, images: Sequence[Prepared], threads: int, runs: int) -> float:
        """Returns the seconds in which each of some threads runs the model so many times."""
        with ThreadPoolExecutor(threads) as pool:
            began = time.perf_counter()
            work = [pool.submit(self._time, images) for _ in range(threads * runs)]
            for run in work:
                run.result()
            return time.perf_counter() - began

    def _time(self, images: Sequence[Prepared]) -> float:
        began = time.perf_counter()
        results = self._backend.run(images)
        if not all(result.finite for result in results):
            raise not_finite("a blank image")
        return time.perf_counter() - began

    @property
    def alive(self) -> bool:
        """Whether the threads of the model are running."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

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
        job.result.add_done_callback(self._forget)
        return job.result

    def _forget(self, result: "Future[RawDetections]") -> None:
        """Removes a cancelled image at once; many could pile up during a long run."""
        if result.cancelled():
            with self._changed:
                self._jobs = deque(job for job in self._jobs if job.result is not result)

    def close(self) -> None:
        """Refuses further images, finishes the submitted ones, and ends the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        try:
            while (jobs := self._next_jobs()) is not None:
                try:
                    # Leaves out cancelled futures.
                    wanted = [job for job in jobs if job.result.set_running_or_notify_cancel()]
                    if wanted:
                        self._run(wanted)
                finally:
                    with self._changed:
                        self.running -= len(jobs)
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """Refuses further images, and fails those that wait for the ended threads."""
        with self._changed:
            self._closed = True
            left, self._jobs = self._jobs, deque()
        for job in left:
            if job.result.set_running_or_notify_cancel():
                job.result.set_exception(ClosedError())

    def _next_jobs(self) -> list[_Job] | None:
        """Waits for images and returns the next batch; None after `close`."""
        largest = self.sizes[-1]
        with self._collecting, self._changed:
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
            self.running += images
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
            outputs = self._backend.run([*images, *[images[-1]] * (size - len(images))])
            self._observe(BatchRun(len(jobs), size, time.perf_counter() - began))
            results = list(zip(jobs, outputs[: len(jobs)], strict=True))
        except BaseException as error:  # Runtimes can raise any exception.
            is_fatal = not isinstance(error, Exception)
            for job in jobs:
                job.result.set_exception(ClosedError() if is_fatal else error)
            if is_fatal:
                raise
            return
        for job, detections in results:
            job.result.set_result(detections)
