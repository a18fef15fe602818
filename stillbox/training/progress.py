"""The progress of a run on a terminal or in a log."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from stillbox.printing import printable_output
from stillbox.training.console import PrintableConsole


class RunProgress:
    """A progress bar on a terminal, plain lines elsewhere.

    Args:
        start: first step of this run.
        stop: last step; None: the run has no end.
        quiet: show nothing, in all but the first process of a job.
    """

    def __init__(self, start: int, stop: int | None, *, quiet: bool = False) -> None:
        self._stop = stop
        self._console = PrintableConsole(stderr=True, highlight=False, quiet=quiet)
        self._bar: Progress | None = None
        self._shown = ExitStack()
        if sys.stderr.isatty() and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}", markup=False),
                console=self._console,
            )
            self._task = self._bar.add_task("training", total=stop, completed=start, numbers="")

    def __enter__(self) -> "RunProgress":
        if self._bar:
            self._shown.enter_context(self._bar)
            # The bar has streams of its own, which take colours from what is printed.
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
        if self._bar:
            self._bar.update(self._task, description=what)
        else:
            self.say(f"... {what}")

    def at(self, step: int) -> None:
        """Moves the bar."""
        if self._bar:
            self._bar.update(self._task, completed=step, description="training")

    def metrics(
        self, step: int, values: Mapping[str, float], seconds_left: float | None = None
    ) -> None:
        """Shows the metrics of a step, under the names of the history with spaces.

        Args:
            step: its number.
            values: metrics by name.
            seconds_left: until the end of the run; None if it has none.
        """
        numbers = (
            f"loss {values['loss']:.4f} ({_terms(values)})  "
            f"learning rate {values['learning_rate']:.3g}  "
            f"{values['images_per_second']:.1f} images/s  "
            f"{1000 / values['steps_per_second']:,.1f} ms a step  "
            f"waiting for data {values['waiting_for_data']:.0%}"
        )
        if "slowest_process" in values:
            numbers += f" (process {values['slowest_process']:.0f})"
        if seconds_left is not None:
            numbers += f"  ETA {timedelta(seconds=round(seconds_left))}"
        if self._bar:
            self._bar.update(self._task, numbers=numbers)
        else:
            self.say(f"step {step}{f'/{self._stop}' if self._stop is not None else ''}  {numbers}")


def _terms(values: Mapping[str, float]) -> str:
    """Returns the terms of the loss; their names are the detector's."""
    names = [name for name in values if name.endswith("_loss")]
    # Regularization is last, as it is in the sum.
    names.sort(key=lambda name: name == "regularization_loss")
    return ", ".join(f"{name.removesuffix('_loss')} {values[name]:.4f}" for name in names)
