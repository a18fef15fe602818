"""Reports the steps of a run: forecast, speed, log lines, history, epochs and totals."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import jax
import numpy as np

from stillbox.devices.chips import Figures, figures_of
from stillbox.devices.process import own_processors
from stillbox.devices.roofline import estimate
from stillbox.devices.setup import PeakMemory, peak_memory
from stillbox.experiment import schema
from stillbox.inputs.loader import TrainLoader
from stillbox.printing import count_text
from stillbox.training.length import minutes_in_steps
from stillbox.training.observing import Moment, RunObserver
from stillbox.training.progress import RunProgress, duration_text
from stillbox.training.summaries import Summaries

# A core in docs/performance.md: the products of RetinaNet, the traffic of SSD MobileNet v1.
_CORE_FLOPS, _CORE_BANDWIDTH = 225e9, 12.5e9
# Factors for slower cores, and for cores that other programs use too.
_ON_PROCESSORS = 1.0, 5.0
# No program reaches an accelerator's published peaks.
_ON_ACCELERATORS = 1.5, 6.0
_UNITS = {"day": 86400, "hour": 3600, "minute": 60}


class Forecast(NamedTuple):
    """The time of a step, from its operations and its memory traffic."""

    least: float
    """Seconds."""
    most: float
    """Seconds."""
    basis: str
    """What it was computed from."""

    def describe(self, steps: int) -> str:
        """Returns a phrase with the time of so many steps."""
        least, most = _rough(steps * self.least), _rough(steps * self.most)
        return f"about {least} to {most}, by {self.basis}"


def forecast(
    steps: Sequence[jax.stages.Compiled], devices: int, precision: str, rounds: int = 1
) -> Forecast | None:
    """Returns the time of a step on this machine; None where its devices are not known.

    Args:
        steps: compiled for each input size, which are drawn equally often.
        devices: those that share a batch.
        rounds: micro-batches of a batch.
    """
    costs: list[Any] = [step.cost_analysis() or {} for step in steps]
    # The analysis counts one round of a loop.
    flops, traffic = (
        rounds * sum(float(cost.get(name, 0)) for cost in costs) / len(costs)
        for name in ("flops", "bytes accessed")
    )
    device = jax.local_devices()[0]
    cpu = device.platform == "cpu"
    figures = _processors() if cpu else figures_of(device.device_kind)
    if flops <= 0 or figures is None:
        return None
    # Published rates are for bfloat16; products of float32 take twice as long.
    work = flops * (1 if cpu or precision == "bfloat16" else 2)
    roof = estimate(figures, flops=work, traffic=traffic, collective=0, devices=devices)
    least, most = _ON_PROCESSORS if cpu else _ON_ACCELERATORS
    number = own_processors() if cpu else devices
    basis = f"{devices * flops / 1e9:,.0f} GFLOP a step on {count_text(number, figures.slot)}"
    return Forecast(least * roof.seconds, most * roof.seconds, basis)


def _processors() -> Figures:
    """Returns the figures of the cores of this process, which its devices share."""
    cores = own_processors()
    return Figures(
        flops=cores * _CORE_FLOPS,
        hbm_bytes=0,
        hbm_bandwidth=cores * _CORE_BANDWIDTH,
        link_bandwidth=cores * _CORE_BANDWIDTH,
        devices=jax.local_device_count(),
        slot="core",
        source="docs/performance.md",
    )


def _rough(seconds: float) -> str:
    """Returns a duration in one unit: `12 minutes`."""
    for unit, size in _UNITS.items():
        if seconds >= 2 * size:
            return count_text(round(seconds / size), unit)
    return count_text(max(round(seconds), 1), "second")


class Stopwatch:
    """Seconds since construction, without pauses."""

    def __init__(self) -> None:
        self._began, self._paused = time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far, without pauses."""
        return time.monotonic() - self._began - self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses while it is entered."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - began


@dataclass(frozen=True)
class Stretch:
    """Successive steps."""

    images: int
    """Rows of their batches."""
    steps: int
    seconds: float
    """Time of the steps, without pauses."""
    waited: tuple[float, ...]
    """Seconds of it that steps waited for the batch of each process."""

    @property
    def images_per_second(self) -> float:
        """Images per second of training."""
        return self.images / self.seconds

    def rates(self) -> dict[str, float]:
        """Returns the speed as metrics by name."""
        rates = {
            "images_per_second": self.images_per_second,
            "steps_per_second": self.steps / self.seconds,
            "waiting_for_data": min(sum(self.waited) / self.seconds, 1.0),
        }
        if len(self.waited) > 1:
            rates["slowest_process"] = float(np.argmax(self.waited))
        return rates


class Waits:
    """Seconds that steps waited because a process had no batch."""

    def __init__(self, processes: int) -> None:
        self._of = np.zeros(processes)

    def add(self, waits: np.ndarray) -> None:
        """Adds the time that each process has waited before each step, `[N, P]` seconds.

        All processes wait for the slowest, to which the wait of a step is attributed.
        """
        for step in waits:
            self._of[np.argmax(step)] += step.max()

    def seconds(self) -> tuple[float, ...]:
        """Returns the seconds that each process has made the others wait."""
        return tuple(self._of.tolist())


class Speedometer:
    """Measures the steps between two calls of `look`.

    Args:
        waited: returns the seconds so far in which steps waited for the batch of each process.
    """

    def __init__(
        self, stopwatch: Stopwatch, batch_size: int, waited: Callable[[], tuple[float, ...]]
    ) -> None:
        self._stopwatch, self._batch_size, self._waited = stopwatch, batch_size, waited
        self.steps, self._at, self._waited_by_then = 0, stopwatch.seconds, waited()
        self._stretch = Stretch(0, 0, 1e-9, (0.0,))

    def look(self, steps: int) -> Stretch:
        """Returns the steps since the last call; without new ones the same stretch again."""
        done = steps - self.steps
        if not done:
            return self._stretch
        now, waited = self._stopwatch.seconds, self._waited()
        self._stretch = Stretch(
            images=done * self._batch_size,
            steps=done,
            seconds=max(now - self._at, 1e-9),
            waited=tuple(np.subtract(waited, self._waited_by_then).tolist()),
        )
        self.steps, self._at, self._waited_by_then = steps, now, waited
        return self._stretch


class Epochs:
    """Finds the steps at which an epoch ends, and summarises the epoch.

    If epochs are short, one sentence summarises several.

    Args:
        first: steps done before this run.
        apart: least number of steps between two sentences.
        speedometer: of this object alone.
    """

    def __init__(
        self, *, records: int, batch_size: int, first: int, apart: int, speedometer: Speedometer
    ) -> None:
        self._records, self._batch_size = records, batch_size
        self._apart, self._speedometer = apart, speedometer
        self._first = self._said_at = first
        self._said = self._ended_by(first)

    def ended(self, step: int, done: int) -> str:
        """Returns a sentence if an epoch ends with this step and a sentence is due.

        Every step has to be passed, in order; `done` steps of this run are done by now.
        """
        now = self._ended_by(step)
        if now == self._ended_by(step - 1) or step - self._said_at < self._apart:
            return ""
        stretch = self._speedometer.look(done)
        before, self._said, since, self._said_at = self._said, now, self._said_at, step
        which = f"epoch {now}" if now == before + 1 else f"epochs {before + 1} to {now}"
        # A resumed run trains only on the rest of an epoch.
        part = since == self._first and since * self._batch_size % self._records
        from_where = f" (from step {since} on)" if part else ""
        duration, rate = timedelta(seconds=round(stretch.seconds)), stretch.images_per_second
        return f"{which} finished{from_where}: {duration}, {rate:,.1f} images/s"

    def _ended_by(self, step: int) -> int:
        return step * self._batch_size // self._records


# Steps after the first until the measured time of the run is reported.
_STEADY_STEPS = 5
# Steps over which the share of waiting is measured, and the share that is worth a sentence.
_WAITING_STEPS, _MUCH_WAITING = 50, 0.2


class Totals(NamedTuple):
    """The totals of a run."""

    images: int
    """Training images, counted each time that they are used."""
    images_per_second: float
    """Images per second of training, without compilation and evaluations."""
    peak_memory: PeakMemory


class StepReport(RunObserver):
    """Reports the metrics of steps at the intervals of the settings.

    Args:
        waits: time that the loop waited for data.
        first: steps done before this run.
        stop_at: last step of the run; None: the run has no end.
        began: `time.monotonic()` of the call of a run that was asked for no length, which is told
            how to ask for one; None: of any other.
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
        began: float | None = None,
    ) -> None:
        self._first, self._stop_at, self._began = first, stop_at, began
        self._line_every = settings.log_every
        self._entry_every = settings.summary_every or settings.log_every
        self._loader, self._progress, self._summaries = loader, progress, summaries
        self._stopwatch = Stopwatch()
        # Each measures the time between its own calls of `look`.
        self._lines, self._entries, self._waiting, of_epochs = (
            Speedometer(self._stopwatch, settings.batch_size, waits.seconds) for _ in range(4)
        )
        self._said_waiting = False
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
        """Reports the number of steps, a forecast of their time, and when it is measured."""
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

    def after(self, moment: Moment) -> str:
        """Reports the steps that were fetched."""
        self.steps(moment.metrics)
        return ""

    def steps(self, seen: Sequence[tuple[int, dict[str, float]]]) -> None:
        """Reports (step, metrics) of completed steps, in order."""
        # Steps that are fetched together have one speed.
        done = seen[-1][0] - self._first if seen else 0
        self._say_waiting(done)
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
        """Reports and returns the totals of a run that took `seconds` to its last step."""
        images = self._loader.images(step) - self._loader.images(self._first)
        totals = Totals(images, images / self._stopwatch.seconds, peak_memory())
        self._progress.say(
            f"total: {duration_text(seconds)}, {count_text(images, 'image')}, "
            f"{totals.images_per_second:,.1f} images/s in training"
        )
        self._progress.say(totals.peak_memory.describe())
        # Each process reads a part of the records.
        process = f"process {jax.process_index()}: " if jax.process_count() > 1 else ""
        self._progress.say(f"{process}{self._loader.stats.summary()}")
        self._describe_cache(again=True)
        for line in self._loader.dataset.source.problems.lines():
            self._progress.say(f"{process}{line}")
        return totals

    def _say_waiting(self, done: int) -> None:
        """Reports once that steps wait for data, and what helps; the first step always waits."""
        if self._said_waiting or (done != 1 and done - self._waiting.steps < _WAITING_STEPS):
            return
        share = self._waiting.look(done).rates()["waiting_for_data"]
        if done > 1 and share > _MUCH_WAITING:
            self._said_waiting = True
            self._progress.say(
                f"{share:.0%} of the time is spent waiting for data: data.processes helps if "
                "processors are idle, data.pixels=uint8 or data.cache_images if they are busy "
                "(docs/training.md, Speed)"
            )

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
        """Reports once how long the run will take, as soon as some steps are measured."""
        if self._length_said or seconds_left is None or done <= _STEADY_STEPS:
            return
        self._length_said = True
        if self._stop_at is None or step >= self._stop_at:
            return
        self._progress.say(
            f"measured: about {duration_text(seconds_left)} for the "
            f"{count_text(self._stop_at - step, 'step')} to come, evaluations not counted"
        )
        if self._began is not None and not self._first:
            seconds = seconds_left / (self._stop_at - step)
            start = time.monotonic() - self._began - done * seconds
            if sentence := minutes_in_steps(start, seconds):
                self._progress.say(sentence)

    def _is_due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self._stop_at

    def _describe_cache(self, *, again: bool = False) -> None:
        cache = self._loader.dataset.cache
        if cache is not None and (again or not self._cache_described):
            self._progress.say(cache.describe())
            self._cache_described = True
