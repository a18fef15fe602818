"""A trace of some steps, for TensorBoard and for Perfetto."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import jax

from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.errors import UserError
from stillbox.inputs.batch import Batch
from stillbox.training.step import Metrics

_WHERE = "--profile"


@dataclass(frozen=True)
class ProfileSteps:
    """The steps that are traced, both ends included (SSD ResNet-34 fact sheet 9).

    They are counted from 1, the first step of this run, whatever step it resumes from.

    Raises:
        UserError: there are no such steps.
    """

    first: int
    """First step of the trace."""
    last: int
    """Last step of it."""

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.last:
            raise UserError(
                f"there are no steps from {self.first} to {self.last}",
                where=_WHERE,
                fix="count from 1 and give the first step first, for example 50,53",
            )

    @classmethod
    def parse(cls, text: str) -> "ProfileSteps | None":
        """Reads `FIRST,LAST`; `0,0` traces nothing.

        Raises:
            UserError: it is not two numbers, or there are no such steps.
        """
        numbers = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", text)
        if not numbers:
            raise UserError(
                f"{text!r} is not the first and the last step of a trace",
                where=_WHERE,
                fix=f"give both, for example {text},{text}" if text.isdecimal() else "50,53",
            )
        first, last = map(int, numbers.groups())
        return cls(first, last) if first or last else None


def refuse_steps_beyond_the_end(
    steps: ProfileSteps | None, model_directory: Path, stop_at: int | None
) -> None:
    """Refuses a trace that the run would end before.

    Args:
        steps: what is to be traced, if anything.
        model_directory: says which step the run resumes from.
        stop_at: last step of the run; None if it goes on until it is stopped.

    Raises:
        UserError: the run has fewer steps.
    """
    if steps is None or stop_at is None:
        return
    done = 0
    if is_model_directory(model_directory):
        done = ModelDirectory.open(model_directory).latest_step() or 0
    left = max(stop_at - done, 0)
    if steps.last <= left:
        return
    resumed = f", because it resumes at step {done} of {stop_at}" if done else ""
    raise UserError(
        f"steps {steps.first} to {steps.last} cannot be traced: this run has {left}{resumed}",
        where=_WHERE,
        fix=f"--profile {max(left - 3, 1)},{left}" if left else "raise train.steps",
    )


class StepProfiler:
    """Marks every step for whoever traces, and traces the steps that are asked for.

    The trace begins when the device has finished the step before, and ends when it has finished
    the last step, so that it holds the device's work on these steps and on no others. A run that
    ends earlier closes the trace.

    Args:
        steps: what is traced; None traces nothing.
        directory: the trace goes into `plugins/profile/TIME` there.
        done: steps before this run.
        say: told where the trace lies.
        paused: what is entered while the trace is written, which is no part of training.
    """

    def __init__(
        self,
        steps: ProfileSteps | None,
        directory: Path,
        done: int,
        say: Callable[[str], None],
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._steps, self._directory, self._done = steps, directory, done
        self._say, self._paused = say, paused
        self._open_since = 0
        self._metrics: Metrics | None = None
        self._number = 0

    def __enter__(self) -> "StepProfiler":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._open_since:
            self._stop(wait=kind is None)

    def mark(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields the batches. A step is all from asking for its batch to asking for the next."""
        for self._number in count(1):
            if self._steps and self._number == self._steps.first:
                self._start()
            with jax.profiler.StepTraceAnnotation("train", step_num=self._done + self._number):
                with jax.profiler.TraceAnnotation("wait for data"):
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch
            if self._steps and self._number == self._steps.last:
                self._stop()

    def dispatched(self, metrics: Metrics) -> None:
        """Is told what tells when the step is done."""
        self._metrics = metrics

    def _start(self) -> None:
        jax.block_until_ready(self._metrics)
        options = jax.profiler.ProfileOptions()
        # Calls of Python functions would bury everything else, and slow down what is measured.
        options.python_tracer_level = 0
        jax.profiler.start_trace(
            self._directory, create_perfetto_trace=True, profiler_options=options
        )
        self._open_since = self._number

    def _stop(self, *, wait: bool = True) -> None:
        since, self._open_since = self._open_since, 0
        if wait:
            jax.block_until_ready(self._metrics)
        with self._paused():
            jax.profiler.stop_trace()
        folders = (self._directory / "plugins" / "profile").iterdir()
        folder = max(folders, key=lambda one: one.stat().st_mtime)
        self._say(
            f"trace of steps {self._done + since} to {self._done + self._number}: open "
            f"{folder}/perfetto_trace.json.gz at https://ui.perfetto.dev, or {self._directory} in "
            "TensorBoard with its profile plugin"
        )
