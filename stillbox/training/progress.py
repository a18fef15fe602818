"""The progress of a run on a terminal or in a log, and the consoles of rich that print it.

The control sequences of a terminal come from rich alone, never from a text that is printed.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from stillbox.printing import own_stream, printable, printable_output, wording_of
from stillbox.references import worded

_LEAST_BAR, _MOST_BAR = 4, 40
# Columns that stay free. At the end of a full line the terminal would echo Ctrl-C on a new line,
# and the status line would stay above it.
_ECHO = len("^C") + 1


class PrintableConsole(Console):
    """A console that prints the control characters of every text as visible ones.

    Args:
        stderr: prints to standard error.
        highlight: colours numbers and names.
        soft_wrap: leaves the wrapping of long lines to the terminal.
        quiet: prints nothing.
    """

    def __init__(
        self,
        *,
        stderr: bool = False,
        highlight: bool = True,
        soft_wrap: bool = False,
        quiet: bool = False,
    ) -> None:
        stream = sys.stderr if stderr else sys.stdout
        self._wording = wording_of(stream)
        super().__init__(
            file=own_stream(stream),
            stderr=stderr,
            highlight=highlight,
            soft_wrap=soft_wrap,
            quiet=quiet,
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields the segments of a renderable, or of one inside another."""
        for text, style, control in super().render(renderable, options):
            yield Segment(
                text if control else printable(worded(text, self._wording)), style, control
            )


@dataclass
class StatusLine:
    """One line of any width: an activity, a count, a bar, and more texts if they fit."""

    doing: str
    done: int = 0
    total: int | None = None
    """None: unknown, or without end."""
    rest: Sequence[str] = ()
    """The most important first; one that does not fit is left out."""

    def live(self, console: Console) -> Live:
        """Returns a display of the line; it disappears at its end."""
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

        The needed texts are more important than the name of the activity.
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


_TRAINING = "step"


class RunProgress:
    """A line with a bar on a terminal, plain lines elsewhere.

    Args:
        start: first step of this run.
        stop: last step; None: the run has no end.
        quiet: show nothing, in all but the first process of a job.
    """

    def __init__(self, start: int, stop: int | None, *, quiet: bool = False) -> None:
        self._stop = stop
        self._console = PrintableConsole(stderr=True, highlight=False, quiet=quiet)
        self._line: StatusLine | None = None
        self._shown = ExitStack()
        self._metrics: tuple[str, ...] = ()
        if sys.stderr.isatty() and not quiet:
            self._line = StatusLine(_TRAINING, start, stop)

    def __enter__(self) -> "RunProgress":
        if self._line:
            self._shown.enter_context(self._line.live(self._console))
            # The line has its own streams, which remove colours from printed text.
            self._shown.enter_context(printable_output())
        return self

    def __exit__(self, *error: object) -> None:
        self._shown.close()

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        # The bar shares this console, so that the line appears above it.
        self._console.print(text, soft_wrap=True, markup=False)

    def doing(self, activity: str) -> None:
        """Shows the present activity."""
        if self._line:
            self._line.doing, self._line.rest = activity, ()
        else:
            self.say(f"... {activity}")

    def at(self, step: int, seconds_left: float | None = None) -> None:
        """Moves the bar; `seconds_left` is None if it is unknown or the run has no end."""
        if self._line:
            self._line.doing, self._line.done = _TRAINING, step
            self._line.rest = (_eta(seconds_left), *self._metrics)

    def metrics(
        self, step: int, values: Mapping[str, float], seconds_left: float | None = None
    ) -> None:
        """Shows the metrics of a step, under the names of the history with spaces."""
        loss, terms = f"loss {values['loss']:.4f}", f"({_terms(values)})"
        rate = f"learning rate {values['learning_rate']:.3g}"
        speed = f"{values['images_per_second']:.1f} images/s"
        pace = f"{1000 / values['steps_per_second']:,.1f} ms a step"
        waits = f"waiting for data {values['waiting_for_data']:.0%}"
        if "slowest_process" in values:
            waits += f" (process {values['slowest_process']:.0f})"
        # The most important first: what does not fit beside the bar is left out.
        self._metrics = (loss, speed, pace, rate, waits, terms)
        if self._line:
            self.at(step, seconds_left)
            return
        of = f"/{self._stop}" if self._stop is not None else ""
        words = (f"{loss} {terms}", rate, speed, pace, waits, _eta(seconds_left))
        self.say("  ".join([f"step {step}{of}", *filter(None, words)]))


def _eta(seconds_left: float | None) -> str:
    return "" if seconds_left is None else f"ETA {duration_text(seconds_left)}"


def _terms(values: Mapping[str, float]) -> str:
    """Returns the terms of the loss; their names are the detector's."""
    names = [name for name in values if name.endswith("_loss")]
    # Regularization is last, as it is in the sum.
    names.sort(key=lambda name: name == "regularization_loss")
    return ", ".join(f"{name.removesuffix('_loss')} {values[name]:.4f}" for name in names)
