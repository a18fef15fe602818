"""A bar on a terminal, nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a callback, told what is done and to do, that draws a bar on the error stream."""
    console = Console(stderr=True)
    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
