"""What receives the reports of a run, and a tracker on a thread: training waits for no server."""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from queue import Full, Queue
from typing import Protocol

import numpy as np

FLUSH_SECONDS = 30.0
"""The longest wait for a tracker at the end of a run."""

# Entries that wait; pictures take memory.
_ENTRIES, _PICTURES = 512, 32


class Logger(Protocol):
    """Receives what a run reports."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Records the metrics of a step by their names in the history."""

    def evaluation(
        self, scores: Mapping[str, float], original: Mapping[str, float], step: int
    ) -> None:
        """Records scores by their names in the history, and by the names of the original."""

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        """Records a picture, `[H, W, 3]` uint8."""

    def close(self, *, failed: bool) -> None:
        """Writes buffered entries."""


class QueuedLogger:
    """Passes entries to a tracker until it fails once; entries beyond a full queue are dropped.

    A failure, the first dropped entry and an unfinished end are each reported once.
    """

    def __init__(self, tracker: Logger, name: str) -> None:
        self._tracker, self._name = tracker, name
        self._queue: Queue[Callable[[Logger], None] | None] = Queue(_ENTRIES)
        self._pictures = threading.Semaphore(_PICTURES)
        self._failed = self._dropped = False
        self._thread = threading.Thread(target=self._pass_on, name=f"{name} logger", daemon=True)
        self._thread.start()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Queues the metrics of a step."""
        self._put(lambda tracker: tracker.metrics(values, step))

    def evaluation(
        self, scores: Mapping[str, float], original: Mapping[str, float], step: int
    ) -> None:
        """Queues scores."""
        self._put(lambda tracker: tracker.evaluation(scores, original, step))

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        """Queues a picture."""

        def pass_on(tracker: Logger) -> None:
            self._pictures.release()
            tracker.image(name, image, step)

        if self._pictures.acquire(blocking=False):
            self._put(pass_on)
        else:
            self._drop()

    def close(self, *, failed: bool) -> None:
        """Waits for the queued entries, at most `FLUSH_SECONDS`."""
        end = time.monotonic() + FLUSH_SECONDS
        try:
            for last in (lambda tracker: tracker.close(failed=failed)), None:
                self._queue.put(last, timeout=max(end - time.monotonic(), 0.0))
            self._thread.join(max(end - time.monotonic(), 0.0))
        except Full:
            pass
        if self._thread.is_alive():
            self._warn(f"has not taken all of this run in {FLUSH_SECONDS:g} s; the rest is lost")

    def _put(self, entry: Callable[[Logger], None]) -> None:
        try:
            self._queue.put_nowait(entry)
        except Full:
            self._drop()

    def _drop(self) -> None:
        if not self._dropped:
            self._warn("is slower than this run, which drops entries; metrics.jsonl has all")
        self._dropped = True

    def _pass_on(self) -> None:
        while (entry := self._queue.get()) is not None:
            try:
                if not self._failed:
                    entry(self._tracker)
            except Exception as error:
                self._failed = True
                self._warn(f"has failed and gets no more of this run: {error}")

    def _warn(self, trouble: str) -> None:
        print(f"warning: {self._name} {trouble}", file=sys.stderr, flush=True)
