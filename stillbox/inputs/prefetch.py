"""Transfer of batches to the device ahead of their use.

The module stands alone because it knows batches and threads, and nothing of training.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable

from jax.profiler import TraceAnnotation

from stillbox.boxes.structures import Batch

# How often a thread that waits for a disk looks whether it is still wanted.
_LOOK_SECONDS = 3.0


class _End:
    """End of the batches, with the error that stopped the thread, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class DevicePrefetcher:
    """Iterates over batches on the device, transferred by a thread.

    `wait_seconds` is the time that the consumer waited for the newest batch, near 0 if the source
    is fast enough.

    Args:
        batches: host batches; closed together with this, if possible.
        put: transfers a batch; called in the thread.
        depth: batches on the device ahead of their use.
        stopped: called repeatedly while no batch is ready; True ends the iteration.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        put: Callable[[Batch], Batch],
        depth: int = 2,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.wait_seconds = 0.0
        self.starved = False
        """Whether `stopped` has ended the iteration."""
        self._stopped = stopped
        self._batches, self._put = batches, put
        self._closing = threading.Event()
        self._room = threading.Semaphore(depth)
        self._ready: queue.SimpleQueue[Batch | _End] = queue.SimpleQueue()
        self._end: _End | None = None
        self._thread = threading.Thread(target=self._run, name="stillbox-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> "DevicePrefetcher":
        return self

    def __next__(self) -> Batch:
        """Returns the next batch on the device.

        Raises:
            StopIteration: after the last batch, or after `close`.
            Exception: whatever the iterator or `put` raised.
        """
        if self._end is not None:
            raise StopIteration
        asked = time.perf_counter()
        item = self._next_ready()
        self.wait_seconds = time.perf_counter() - asked
        if not isinstance(item, _End):
            self._room.release()
            return item
        self._end = item
        self._thread.join()
        if item.error is not None:
            raise item.error
        raise StopIteration

    def _next_ready(self) -> Batch | _End:
        while True:
            try:
                return self._ready.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if self._stopped():
                    self.starved = True
                    self._end = _End()
                    raise StopIteration from None

    def close(self) -> None:
        """Ends the thread and closes the iterator; may be called repeatedly."""
        self._closing.set()
        self._end = self._end or _End()
        self._room.release()  # the thread may be waiting for it
        # A thread that hangs in the source cannot be ended.
        self._thread.join(_LOOK_SECONDS if self._stopped() else None)

    def __enter__(self) -> "DevicePrefetcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        end = _End()
        try:
            for batch in self._batches:
                self._room.acquire()
                if self._closing.is_set():
                    break
                with TraceAnnotation("put a batch on the device"):
                    self._ready.put(self._put(batch))
        except BaseException as error:
            end = _End(error)
        finally:
            # A generator must be closed by the thread that runs it.
            close = getattr(self._batches, "close", None)
            if close is not None:
                close()
            self._ready.put(end)
