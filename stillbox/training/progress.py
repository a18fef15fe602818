"""The progress of a run on a terminal or in a log."""

import sys
import time
from collections.abc import Mapping
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class RunProgress:
    """A progress bar on a terminal, plain lines elsewhere.

    Args:
        start: first step of this run.
        stop: last step; None: the run has no end.
        quiet: show nothing, in all but the first process of a job.
    """

    def __init__(self, start: int, stop: int | None, *, quiet: bool = False) -> None:
        self._stop, self._started_at, self._start = stop, time.monotonic(), start
        self._console = Console(stderr=True, highlight=False, quiet=quiet)
        self._bar: Progress | None = None
        if sys.stderr.isatty() and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task("training", total=stop, completed=start, numbers="")

    def __enter__(self) -> "RunProgress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

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

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Shows the metrics of a step."""
        numbers = (
            f"loss {values['loss']:.4f} ({_terms(values)})  "
            f"rate {values['learning_rate']:.3g}  {values['images_per_second']:.1f} images/s  "
            f"{1000 / values['steps_per_second']:,.1f} ms a step  "
            f"waiting for data {values['waiting_for_data']:.0%}"
        )
        if "slowest_process" in values:
            numbers += f" (process {values['slowest_process']:.0f})"
        if self._bar:
            self._bar.update(self._task, numbers=numbers)
            return
        if self._stop is None:
            self.say(f"step {step}  {numbers}")
            return
        seconds = (time.monotonic() - self._started_at) / max(step - self._start, 1)
        left = timedelta(seconds=round(seconds * (self._stop - step)))
        self.say(f"step {step}/{self._stop}  {numbers}  ETA {left}")


_TERMS = {
    "classification_loss": "class",
    "localization_loss": "box",
    "regularization_loss": "penalty",
}


def _terms(values: Mapping[str, float]) -> str:
    """Returns the terms of the loss; their names are the detector's."""
    names = [name for name in values if name.endswith("_loss")]
    # The penalty is last, as it is in the sum.
    names.sort(key=lambda name: name == "regularization_loss")
    return ", ".join(
        f"{_TERMS.get(name, name.removesuffix('_loss'))} {values[name]:.4f}" for name in names
    )
