"""Reports of work and waits that take long, without a terminal too.

Silence would look like a hang: of a compilation, of a disk that does not answer, or of one slow
process of many.
"""

import faulthandler
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import IO, Self, TextIO, TypeVar

from stillbox.errors import UserError
from stillbox.printing import printable

# Of work and waits that happen once, while nothing else is printed; and of those in a loop.
_ONCE_SECONDS, _REPEATED_SECONDS = 10.0, 30.0
_MOST_SECONDS = 60.0
_LINES_KEPT = 20

Item = TypeVar("Item")


def report_moments(first: float) -> Iterator[float]:
    """Yields the seconds at which a wait is reported: `first`, each doubling, every minute."""
    moment = first
    while True:
        yield moment
        moment += min(moment, _MOST_SECONDS)


def still_waiting(seconds: float, awaited: str) -> str:
    """Returns the report of a wait."""
    return f"still waiting after {seconds:.0f} s: {awaited}"


def say_aside(line: str) -> None:
    """Prints a line to standard error and flushes it."""
    # Looked up at each call: a progress bar replaces the stream, and all processes but the first
    # have a silenced one.
    print(line, file=sys.stderr, flush=True)


def print_as_process(text: str) -> None:
    """Prints a line to standard error with the index of this process, even where it is silenced."""
    import jax

    index, count = jax.process_index(), jax.process_count()
    if count > 1:
        text = f"process {index} of {count}: {text}"
    print(printable(text), file=sys.__stderr__ if index else sys.stderr, flush=True)


class StallReporter:
    """Reports what a thread waits for while that takes long, at `report_moments`.

    Args:
        first: seconds until the first report.
        say: prints a report; called from a thread of its own.
    """

    def __init__(
        self,
        first: float = _REPEATED_SECONDS,
        say: Callable[[str], None] = print_as_process,
    ) -> None:
        self._say, self._first = say, first
        self._current: tuple[Callable[[float], str], float] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stillbox-stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()

    @contextmanager
    def reporting(self, describe: Callable[[float], str]) -> Iterator[None]:
        """Reports what `describe` returns for the seconds so far, if anything, while entered."""
        self._current = (describe, time.monotonic())
        try:
            yield
        finally:
            self._current = None

    @contextmanager
    def waiting(self, awaited: str) -> Iterator[None]:
        """Reports the time in which it is entered as a wait for `awaited`, and the end."""
        began = time.monotonic()
        with self.reporting(lambda seconds: still_waiting(seconds, awaited)):
            yield
        seconds = time.monotonic() - began
        if seconds > self._first:
            self._say(f"{awaited}: there after {seconds:.0f} s")

    def over(self, items: Iterable[Item], awaited: str) -> Iterator[Item]:
        """Yields the items; the time until each of them is a wait for `awaited`."""
        ahead = iter(items)
        while True:
            with self.waiting(awaited):
                try:
                    item = next(ahead)
                except StopIteration:
                    return
            yield item

    def _run(self) -> None:
        reported, moments, moment = None, report_moments(self._first), 0.0
        while not self._closing.wait(min(self._first / 10, 0.5)):
            if (current := self._current) is None:
                continue
            if current is not reported:
                reported, moments = current, report_moments(self._first)
                moment = next(moments)
            describe, began = current
            seconds = time.monotonic() - began
            if seconds >= moment:
                if text := describe(seconds):
                    self._say(text)
                moment = next(moments)


@contextmanager
def waiting_for(awaited: str, first: float = _ONCE_SECONDS) -> Iterator[None]:
    """Reports a single wait for `awaited`."""
    with StallReporter(first) as stalls, stalls.waiting(awaited):
        yield


@contextmanager
def announcing(
    progress: Callable[[], str],
    first: float | None = None,
    say: Callable[[str], None] = say_aside,
) -> Iterator[None]:
    """Reports work with its seconds while it is entered: `compiling the train step: 40 s`.

    Args:
        progress: describes the work for each report; empty: nothing is printed.
        first: seconds until the first report; None: 10.
        say: prints a report; called from a thread of its own.
    """

    def describe(seconds: float) -> str:
        work = progress()
        return f"{work}: {seconds:.0f} s" if work else ""

    stalls = StallReporter(_ONCE_SECONDS if first is None else first, say)
    with stalls, stalls.reporting(describe):
        yield


@contextmanager
def announcing_alone(work: str) -> Iterator[None]:
    """Reports work as `announcing` does, and keeps back what other programs print meanwhile.

    Converters write logs and bars to the streams of Python and of the process. The last lines are
    printed if the work fails with an error that is not ours.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as kept:
        try:
            with _redirected(kept) as stream, announcing(lambda: work, say=_printer(stream)):
                yield
        except Exception as error:
            if not isinstance(error, UserError):
                kept.seek(0)
                print("".join(kept.readlines()[-_LINES_KEPT:]), file=sys.stderr)
            raise


def _printer(stream: TextIO) -> Callable[[str], None]:
    return lambda line: print(line, file=stream, flush=True)


@contextmanager
def _redirected(file: IO[str]) -> Iterator[TextIO]:
    """Sends the standard streams into a file; yields what still is standard error."""
    stream = sys.stderr
    with ExitStack() as undo:
        for number, former in ((1, sys.stdout), (2, stream)):
            former.flush()
            saved = os.dup(number)
            undo.callback(os.close, saved)
            undo.callback(os.dup2, saved, number)
            os.dup2(file.fileno(), number)
        # A notebook's streams differ from the process's.
        errors = stream
        if _is_standard(stream):
            errors = undo.enter_context(open(saved, "w", encoding="utf-8", closefd=False))
        if not faulthandler.is_enabled():
            # A converter that aborts would end the process without a word.
            faulthandler.enable(saved)
            undo.callback(faulthandler.disable)
        undo.enter_context(redirect_stdout(file))
        undo.enter_context(redirect_stderr(file))
        yield errors


def _is_standard(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 2
    except (OSError, AttributeError):
        return False
