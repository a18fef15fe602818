"""The progress of a run on a terminal or in a log."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack

from stillbox.printing import printable_output
from stillbox.training.console import PrintableConsole, StatusLine, duration_text

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
            # The line has streams of its own, which take colours from what is printed.
            self._shown.enter_context(printable_output())
        return self

    def __exit__(self, *error: object) -> None:
        self._shown.close()

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        # The bar shares this console, so that the line appears above it.
        self._console.print(text, soft_wrap=True, markup=False)

    def doing(self, what: str) -> None:
        """Shows the present activity."""
        if self._line:
            self._line.doing, self._line.rest = what, ()
        else:
            self.say(f"... {what}")

    def at(self, step: int, seconds_left: float | None = None) -> None:
        """Moves the bar.

        Args:
            step: done.
            seconds_left: until the end of the run; None if it is unknown or there is none.
        """
        if self._line:
            self._line.doing, self._line.done = _TRAINING, step
            self._line.rest = (_eta(seconds_left), *self._metrics)

    def metrics(
        self, step: int, values: Mapping[str, float], seconds_left: float | None = None
    ) -> None:
        """Shows the metrics of a step, under the names of the history with spaces.

        Args:
            step: its number.
            values: metrics by name.
            seconds_left: as for `at`.
        """
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
