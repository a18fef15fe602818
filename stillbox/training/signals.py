"""Requests to stop: SIGTERM and Ctrl-C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class RunInterrupted(KeyboardInterrupt):
    """A signal ended a run in something that is not worth finishing.

    Args:
        number: the signal's.
        doing: as in "compiling the train step".
    """

    def __init__(self, number: signal.Signals, doing: str) -> None:
        self.number = number
        super().__init__(f"stopped by {number.name} while {doing}; run again to go on")


class StopRequest:
    """Catches SIGTERM and Ctrl-C while it is entered; a second Ctrl-C interrupts at once.

    Preemption sends SIGTERM and leaves a few seconds: enough for a checkpoint, so that nothing of
    the run is lost.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._doing = ""

    def __enter__(self) -> "StopRequest":
        self._previous = {}
        # Only the main thread may set handlers; elsewhere (a notebook, a test) there is no request.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def ends(self, doing: str) -> Iterator[None]:
        """Lets a signal end what is done while this is entered: it takes long and can be repeated.

        Args:
            doing: as in "compiling the train step".

        Raises:
            RunInterrupted: a signal came before or while it was entered.
        """
        self._doing = doing
        try:
            self._raise_if_asked()
            yield
        finally:
            self._doing = ""

    def _raise_if_asked(self) -> None:
        if self.signal is not None and self._doing:
            raise RunInterrupted(self.signal, self._doing)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        self._raise_if_asked()
