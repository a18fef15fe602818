"""Requests to stop: SIGTERM, Ctrl-C, and SIGHUP of a terminal that is closed."""

import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from stillbox.devices.compiling import end_process
from stillbox.system import STOP_SIGNALS, TERMINAL_CLOSED

# Seconds in which a handler's exception ends the main thread.
_AT_ONCE = 1.0


class RunInterrupted(KeyboardInterrupt):
    """A signal ended a run during an activity that can be repeated.

    `doing` names the activity, for example "compiling the train step".
    """

    def __init__(self, number: signal.Signals, doing: str) -> None:
        self.number = number
        super().__init__(f"stopped by {number.name} while {doing}; run again to go on")


class StopRequest:
    """Catches SIGTERM, Ctrl-C and SIGHUP while it is entered; a second Ctrl-C interrupts at once.

    Preemption sends SIGTERM and leaves a few seconds: enough for a checkpoint. Under `nohup` SIGHUP
    stays ignored.

    Args:
        grace: seconds after which the process is ended if this is still entered then, or at once on
            a second signal: a disk that does not answer can block the main thread outside of
            Python, where no handler runs. None: it is waited for without end.
    """

    def __init__(self, grace: float | None = None) -> None:
        self.signal: signal.Signals | None = None
        self._doing, self._grace = "", grace
        self._wakeup: socket.socket | None = None

    def __enter__(self) -> "StopRequest":
        self._previous = {}
        # Only the main thread may set handlers; elsewhere (a notebook, a test) there is no request.
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number != TERMINAL_CLOSED or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
            if self._grace is not None:
                self._watch(self._grace)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._wakeup is not None:
            signal.set_wakeup_fd(-1)
            self._wakeup.close()
            self._wakeup = None

    def _watch(self, grace: float) -> None:
        """Starts a thread that receives signals even if the main thread is blocked."""
        # Not a pipe: Windows waits for sockets alone.
        numbers, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno())
        threading.Thread(target=_end_after, args=(numbers, grace), daemon=True).start()

    @contextmanager
    def ends(self, doing: str) -> Iterator[None]:
        """Lets a signal end the block, which takes long and can be repeated.

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
        if number == TERMINAL_CLOSED:
            _forget_closed_terminal()
        self.signal = signal.Signals(number)
        self._raise_if_asked()


def _end_after(numbers: socket.socket, grace: float) -> None:
    """Ends the process some seconds after a signal, unless the other end is closed."""
    with numbers:
        number = _next_signal(numbers)
        again = _next_signal(numbers, grace) if number else 0
        # After a second signal the exception of a handler may end the main thread.
        if again == 0 or (again and _next_signal(numbers, _AT_ONCE) == 0):
            return
    _forget_closed_terminal()
    name = signal.Signals(number or 0).name
    print(f"stopped by {name} while a file or the device did not answer", file=sys.stderr)
    end_process(128 + (number or 0))


def _next_signal(numbers: socket.socket, seconds: float = math.inf) -> int | None:
    """Returns the number of the next stop signal; 0: the socket is closed; None: none came."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([numbers], [], [], None if left == math.inf else left)[0]:
            read = numbers.recv(1)
            if not read or read[0] in STOP_SIGNALS:
                return read[0] if read else 0
    return None


def _forget_closed_terminal() -> None:
    """Discards later output to a terminal that is closed: its error would end the run."""
    for output in (1, 2):
        try:
            os.write(output, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
