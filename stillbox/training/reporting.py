"""Reports the steps of a run: log lines, entries of the history, epochs, totals."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from stillbox.devices.memory import PeakMemory, peak_memory
from stillbox.experiment import schema
from stillbox.inputs.loader import TrainLoader
from stillbox.printing import count_text
from stillbox.training.console import duration_text
from stillbox.training.epochs import Epochs
from stillbox.training.forecast import Forecast
from stillbox.training.progress import RunProgress
from stillbox.training.speed import Speedometer, Stopwatch, Waits
from stillbox.training.summaries import Summaries

# Steps after the first until the time of the run is said.
_STEADY_STEPS = 5


class Totals(NamedTuple):
    """The totals of a run."""

    images: int
    """Training images, counted each time that they are used."""
    images_per_second: float
    """Images per second of training, without compilation and evaluations."""
    peak_memory: PeakMemory


class StepReport:
    """Reports the metrics of steps at the intervals of the settings.

    Args:
        settings: the intervals.
        loader: of the training images.
        waits: time that the loop waited for data.
        first: steps done before this run.
        stop_at: last step of the run; None: the run has no end.
        progress: receives the lines.
        summaries: receives the entries of the history.
    """

    def __init__(
        self,
        settings: schema.Training,
        loader: TrainLoader,
        waits: Waits,
        *,
        first: int,
        stop_at: int | None,
        progress: RunProgress,
        summaries: Summaries,
    ) -> None:
        self._first, self._stop_at = first, stop_at
        self._line_every = settings.log_every
        self._entry_every = settings.summary_every or settings.log_every
        self._loader, self._progress, self._summaries = loader, progress, summaries
        self._stopwatch = Stopwatch()
        # Each measures the time between its own calls of `look`.
        self._lines, self._entries, of_epochs = (
            Speedometer(self._stopwatch, settings.batch_size, waits.seconds) for _ in range(3)
        )
        self._epochs = Epochs(
            records=len(loader.dataset),
            batch_size=settings.batch_size,
            first=first,
            apart=settings.log_every,
            speedometer=of_epochs,
        )
        self._cache_described = False
        self._first_step_seconds: float | None = None
        self._length_said = stop_at is None

    def begin(self, forecast: Forecast | None) -> None:
        """Says how many steps there are, how long they take, and when that is measured."""
        steps = (self._stop_at or self._first) - self._first
        if steps > _STEADY_STEPS + 1:
            guess = f": {forecast.describe(steps)}" if forecast else ""
            self._progress.say(
                f"{count_text(steps, 'step')} to do{guess}; measured after the first "
                f"{_STEADY_STEPS + 1}"
            )

    def paused(self) -> AbstractContextManager[None]:
        """Returns a context that is not counted as training time."""
        return self._stopwatch.paused()

    def steps(self, seen: Sequence[tuple[int, dict[str, float]]]) -> None:
        """Reports (step, metrics) of completed steps, in order."""
        # Steps that were fetched together share one speed.
        done = seen[-1][0] - self._first if seen else 0
        for step, metrics in seen:
            left = self._seconds_left(step, done)
            self._progress.at(step, left)
            self._say_length(step, done, left)
            if self._is_due(step, self._entry_every):
                self._summaries.metrics(step, metrics | self._entries.look(done).rates())
            if self._is_due(step, self._line_every) or step == self._first + 1:
                rates = self._lines.look(done).rates()
                self._progress.metrics(step, metrics | rates, left)
            if sentence := self._epochs.ended(step, done):
                self._progress.say(sentence)
                self._describe_cache()

    def end(self, step: int, seconds: float) -> Totals:
        """Reports and returns the totals.

        Args:
            step: the last completed step.
            seconds: duration of the whole run.
        """
        images = self._loader.images(step) - self._loader.images(self._first)
        totals = Totals(images, images / self._stopwatch.seconds, peak_memory())
        self._progress.say(
            f"total: {duration_text(seconds)}, {count_text(images, 'image')}, "
            f"{totals.images_per_second:,.1f} images/s in training"
        )
        self._progress.say(totals.peak_memory.describe())
        self._progress.say(self._loader.stats.summary())
        self._describe_cache(again=True)
        for line in self._loader.dataset.source.problems.lines():
            self._progress.say(line)
        return totals

    def _seconds_left(self, step: int, done: int) -> float | None:
        """Returns the time of the steps that are left, without evaluations to come.

        None without an end, and after the first step: that also waits for the loader to begin.
        """
        seconds = self._stopwatch.seconds
        if self._first_step_seconds is None:
            self._first_step_seconds = seconds
        if self._stop_at is None or done < 2:
            return None
        return (seconds - self._first_step_seconds) / (done - 1) * (self._stop_at - step)

    def _say_length(self, step: int, done: int, seconds_left: float | None) -> None:
        """Says once how long the run will take, as soon as some steps are measured."""
        if self._length_said or seconds_left is None or done <= _STEADY_STEPS:
            return
        self._length_said = True
        if self._stop_at is not None and step < self._stop_at:
            self._progress.say(
                f"measured: about {duration_text(seconds_left)} for the "
                f"{count_text(self._stop_at - step, 'step')} to come, evaluations not counted"
            )

    def _is_due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self._stop_at

    def _describe_cache(self, *, again: bool = False) -> None:
        cache = self._loader.dataset.cache
        if cache is not None and (again or not self._cache_described):
            self._progress.say(cache.describe())
            self._cache_described = True
