"""Consoles of rich: the control sequences of a terminal are rich's own, never those of a text."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from stillbox.printing import own_stream, printable

_LEAST_BAR, _MOST_BAR = 4, 40
# Columns that stay free: at the end of a full line the terminal's echo of Ctrl-C would begin
# another one, and the line above it would stay.
_ECHO = len("^C") + 1


class PrintableConsole(Console):
    """A console that spells out in every text what a terminal would act on.

    Args:
        stderr: prints to standard error.
        options: those of rich.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:  # noqa: ANN401
        file = own_stream(sys.stderr if stderr else sys.stdout)
        super().__init__(file=file, stderr=stderr, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields the segments of a renderable; also of those inside of others."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


@dataclass
class StatusLine:
    """One line of any width: what is done, how much of it, a bar, and of the rest what fits."""

    doing: str
    done: int = 0
    total: int | None = None
    """None: unknown, or without end."""
    rest: Sequence[str] = ()
    """The most important first; one that does not fit is left out."""

    def live(self, console: Console) -> Live:
        """Returns a display of the line, which is gone when that ends."""
        return Live(get_renderable=lambda: self, console=console, transient=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, rest = options.max_width - _ECHO, [text for text in self.rest if text]
        head, gap = self._head(width, rest[:2])
        left = width - len(head) - len(gap) - _LEAST_BAR
        shown: list[str] = []
        for text in rest:
            if left >= len(gap) + len(text):
                left -= len(gap) + len(text)
                shown.append(text)
        row: list[RenderableType] = [Text(head, "bold")]
        if left >= 0:
            row.append(ProgressBar(self.total, self.done, width=min(_LEAST_BAR + left, _MOST_BAR)))
        row += [Text(gap.join(shown))] if shown else []
        line = Table.grid(padding=(0, len(gap)), pad_edge=False)
        for _ in row:
            line.add_column(no_wrap=True)
        line.add_row(*row)
        yield line

    def _head(self, width: int, needed: Sequence[str]) -> tuple[str, str]:
        """Returns the beginning and the gap between parts, narrower where `needed` would not fit.

        What is needed is worth more than the word for what is done.
        """
        count = f"{self.done}" + (f"/{self.total}" if self.total else "")
        forms = [(f"{self.doing} {count}", "  "), (count, "  "), (count, " ")]
        for head, gap in forms:
            if (
                len(head) + _LEAST_BAR + sum(map(len, needed)) + len(gap) * (1 + len(needed))
                <= width
            ):
                return head, gap
        return forms[-1]


def duration_text(seconds: float) -> str:
    """Returns hours, minutes and seconds; days too if there are any: `2d 7:33:20`."""
    days, rest = divmod(round(seconds), 86400)
    return f"{days}d " * bool(days) + str(timedelta(seconds=rest))
