"""Reports of work that takes long, without a terminal too: silence would look like a hang."""

import faulthandler
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

from stillbox.errors import UserError

_PATIENCE_SECONDS = 10.0
# Reports become rarer, but never more so.
_RAREST_SECONDS = 60.0
_LINES_KEPT = 20


@contextmanager
def announcing(
    what: Callable[[], str],
    patience: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Reports work with its seconds while it is entered: `compiling the train step: 40 s`.

    Args:
        what: called for each report; describes the work, with its progress. Nothing is said if
            that is empty.
        patience: seconds until the first report; None: 10. The next ones come when that has
            doubled, and at least every minute.
        say: prints a report, by default to standard error; called from a thread of its own.
    """
    began, ended = time.monotonic(), threading.Event()
    first = _PATIENCE_SECONDS if patience is None else patience

    def report() -> None:
        after = first
        while not ended.wait(after - (time.monotonic() - began)):
            if work := what():
                (say or say_aside)(f"{work}: {time.monotonic() - began:.0f} s")
            after += min(after, _RAREST_SECONDS)

    thread = threading.Thread(target=report, name="stillbox-announcing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def say_aside(line: str) -> None:
    """Prints a line to standard error and flushes it."""
    # Looked up at each call, since a progress bar replaces the stream. That of all processes but
    # the first is silenced.
    print(line, file=sys.stderr, flush=True)


@contextmanager
def announcing_alone(what: str) -> Iterator[None]:
    """Reports work as `announcing` does, and keeps back what other programs print meanwhile.

    Converters write logs and bars to the streams of Python and of the process. The last lines are
    printed if the work fails with an error that is not ours.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as kept:
        try:
            with _redirected(kept) as own, announcing(lambda: what, say=_printer(own)):
                yield
        except Exception as error:
            if not isinstance(error, UserError):
                kept.seek(0)
                print("".join(kept.readlines()[-_LINES_KEPT:]), file=sys.stderr)
            raise


def _printer(stream: TextIO) -> Callable[[str], None]:
    return lambda line: print(line, file=stream, flush=True)


@contextmanager
def _redirected(file: TextIO) -> Iterator[TextIO]:
    """Sends the standard streams into a file; yields what still is standard error."""
    stream = sys.stderr
    with ExitStack() as undo:
        for number, former in ((1, sys.stdout), (2, stream)):
            former.flush()
            saved = os.dup(number)
            undo.callback(os.close, saved)
            undo.callback(os.dup2, saved, number)
            os.dup2(file.fileno(), number)
        # A notebook's streams are not those of the process.
        own = (
            undo.enter_context(open(saved, "w", closefd=False)) if _is_standard(stream) else stream
        )
        if not faulthandler.is_enabled():
            # A converter that aborts would end the process without a word.
            faulthandler.enable(saved)
            undo.callback(faulthandler.disable)
        undo.enter_context(redirect_stdout(file))
        undo.enter_context(redirect_stderr(file))
        yield own


def _is_standard(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 2
    except (OSError, AttributeError):
        return False
