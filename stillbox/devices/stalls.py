"""Reports waits that take long, while they last.

Without that a disk that does not answer, or one slow process of many, would look like a run that
hangs.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Self, TypeVar

from stillbox.devices.job import print_as_process

Item = TypeVar("Item")

_PATIENCE_SECONDS = 30.0
# Of things that are done once, and of which nothing else is seen meanwhile.
_ONCE_SECONDS = 10.0


class StallReporter:
    """Reports a wait of one thread after a while, and again each time that has doubled.

    Args:
        patience: seconds until the first report.
        say: prints a report; called from a thread of its own.
    """

    def __init__(
        self, patience: float = _PATIENCE_SECONDS, say: Callable[[str], None] = print_as_process
    ) -> None:
        self._say, self._patience = say, patience
        self._waiting: tuple[str, float] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stillbox-stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Marks the time in which it is entered as a wait for `what`."""
        began = time.monotonic()
        self._waiting = (what, began)
        try:
            yield
        finally:
            self._waiting = None
        seconds = time.monotonic() - began
        if seconds > self._patience:
            self._say(f"{what}: there after {seconds:.0f} s")

    def over(self, items: Iterable[Item], what: str) -> Iterator[Item]:
        """Yields the items; the time until each of them is a wait for `what`."""
        ahead = iter(items)
        while True:
            with self.waiting(what):
                try:
                    item = next(ahead)
                except StopIteration:
                    return
            yield item

    def _run(self) -> None:
        reported: tuple[str, float] | None = None
        after = self._patience
        while not self._closing.wait(self._patience / 10):
            if (waiting := self._waiting) is None:
                continue
            if waiting != reported:
                reported, after = waiting, self._patience
            what, began = waiting
            seconds = time.monotonic() - began
            if seconds >= after:
                self._say(f"still waiting after {seconds:.0f} s: {what}")
                after *= 2


@contextlib.contextmanager
def waiting_for(what: str, patience: float = _ONCE_SECONDS) -> Iterator[None]:
    """Reports a single wait; see `StallReporter`."""
    with StallReporter(patience) as stalls, stalls.waiting(what):
        yield
