"""Reports of work that takes long, without a terminal too: silence would look like a hang."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PATIENCE_SECONDS = 10.0
# Reports become rarer, but never more so.
_RAREST_SECONDS = 60.0


@contextmanager
def announcing(
    what: Callable[[], str],
    patience: float = _PATIENCE_SECONDS,
    say: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Reports work with its seconds while it is entered: `compiling the train step: 40 s`.

    Args:
        what: called for each report; describes the work, with its progress. Nothing is said if
            that is empty.
        patience: seconds until the first report. The next ones come when that has doubled, and at
            least every minute.
        say: prints a report, by default to standard error; called from a thread of its own.
    """
    began, ended = time.monotonic(), threading.Event()

    def report() -> None:
        after = patience
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
