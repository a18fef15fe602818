"""A progress bar, on a terminal only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback of (done, total) that updates a bar on standard error."""
    console = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, _Speed(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Speed(ProgressColumn):
    """How many are done in a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f}/s" if task.speed else "")
