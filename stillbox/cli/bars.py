"""The progress of a verb: a bar on a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stillbox.devices.announcing import announcing
from stillbox.printing import printable_output
from stillbox.training.console import PrintableConsole, StatusLine, duration_text


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback of (done, total) that updates a bar on standard error.

    Without a terminal a line now and then says how far it is; short work prints none.
    """
    if not PrintableConsole(stderr=True).is_terminal:
        with _progress_lines(name) as report:
            yield report
        return
    line, began = StatusLine(name), time.monotonic()

    def show(done: int, total: int) -> None:
        rate = done / max(time.monotonic() - began, 1e-3)
        eta = f"ETA {duration_text((total - done) / rate)}" if rate else ""
        line.done, line.total, line.rest = done, total, (eta, f"{rate:.1f}/s")

    # The line has streams of its own, which take colours from what is printed.
    with line.live(PrintableConsole(stderr=True)), printable_output():
        yield show


@contextmanager
def _progress_lines(name: str) -> Iterator[Callable[[int, int], None]]:
    # Emptied by each report: what does not move is not repeated.
    so_far, began = [""], time.monotonic()

    def update(done: int, total: int) -> None:
        rate = done / max(time.monotonic() - began, 1e-3)
        so_far[0] = f"{name}: {done} of {total}, {rate:.1f}/s"

    def describe() -> str:
        text, so_far[0] = so_far[0], ""
        return text

    stream = sys.stderr
    with announcing(describe, say=lambda line: print(line, file=stream, flush=True)):
        yield update
