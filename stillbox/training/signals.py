"""Requests to stop: SIGTERM and Ctrl-C."""

import signal
import threading
from types import FrameType


class StopRequest:
    """Catches SIGTERM and Ctrl-C while it is entered; a second Ctrl-C interrupts at once.

    Preemption sends SIGTERM and leaves a few seconds: enough for a checkpoint, so that nothing of
    the run is lost.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

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

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
