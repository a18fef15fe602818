"""Says so when something is long in coming, while it is waited for.

A disk that does not answer, or one process of many that is slow, would otherwise look like a run
that hangs.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Self, TypeVar

from stillbox.devices.job import say_as_process

Item = TypeVar("Item")

_PATIENCE_SECONDS = 30.0


class StallWatch:
    """Looks on while a thread waits; speaks after a while, and each time that has doubled.

    Args:
        patience: seconds until the first time.
        say: told what is waited for, from a thread of its own.
    """

    def __init__(
        self, patience: float = _PATIENCE_SECONDS, say: Callable[[str], None] = say_as_process
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
        """Marks that this thread waits for `what` for as long as it is entered."""
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
        """Yields the items; whoever asks for the next one waits for `what`."""
        ahead = iter(items)
        while True:
            with self.waiting(what):
                try:
                    item = next(ahead)
                except StopIteration:
                    return
            yield item

    def _run(self) -> None:
        told: tuple[str, float] | None = None
        after = self._patience
        while not self._closing.wait(self._patience / 10):
            waiting = self._waiting
            if waiting is None:
                continue
            if waiting != told:
                told, after = waiting, self._patience
            what, began = waiting
            seconds = time.monotonic() - began
            if seconds >= after:
                self._say(f"still waiting after {seconds:.0f} s: {what}")
                after *= 2


@contextlib.contextmanager
def waiting_for(what: str, patience: float = _PATIENCE_SECONDS) -> Iterator[None]:
    """Marks a wait that is not one of many; see `StallWatch`."""
    with StallWatch(patience) as stalls, stalls.waiting(what):
        yield
