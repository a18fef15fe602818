"""Traces some steps for XProf and Perfetto."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path

import jax

from stillbox.devices.job import is_main_process
from stillbox.evaluation.step_observer import Item, StepObserver
from stillbox.profiling.steps import ProfileSteps
from stillbox.records.files import make_folder


class StepProfiler(StepObserver):
    """Annotates every step for any trace, and traces some of them itself.

    The trace begins when the device has finished the step before and ends when it has finished the
    last step. It therefore holds the device's work on these steps only. A run that ends earlier
    closes the trace.

    Args:
        steps: the steps to trace; None traces nothing.
        directory: the trace is written to `plugins/profile/TIME` there.
        done: steps before this run.
        say: prints where the trace is.
        paused: entered while the trace is written, which is no part of the run.
        name: of the annotations.
    """

    def __init__(
        self,
        steps: ProfileSteps | None,
        directory: Path,
        done: int = 0,
        say: Callable[[str], None] = print,
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
        name: str = "train",
    ) -> None:
        self._steps, self._directory, self._done = steps, directory, done
        self._say, self._paused, self._name = say, paused, name
        self._open_since = 0
        self._traced = False
        self._result: object = None
        self._number = 0

    def __enter__(self) -> "StepProfiler":
        if not is_main_process():
            self._steps = None  # one trace a job: the processes share the folder
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._open_since:
            self._stop(wait=kind is None)
        elif self._steps and not self._traced and kind is None:
            self._say(
                f"warning: nothing was traced: there was no step {self._steps.first} in this run"
            )

    def mark(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yields the items; a step begins with a request for an item. A second call continues the
        count."""
        for number in count(self._number + 1):
            self._number = number
            if self._steps and self._number == self._steps.first:
                self._start()
            with jax.profiler.StepTraceAnnotation(self._name, step_num=self._done + self._number):
                with jax.profiler.TraceAnnotation("wait for data"):
                    item = next(items, None)
                if item is None:
                    self._number -= 1
                    self._abandon()
                    return
                yield item
            if self._steps and self._number == self._steps.last:
                self._stop()

    def dispatched(self, result: object) -> None:
        """Receives arrays that the step computes: it is done when they are ready."""
        self._result = result

    def _start(self) -> None:
        jax.block_until_ready(self._result)
        make_folder(self._directory / "plugins" / "profile", below=self._directory)
        options = jax.profiler.ProfileOptions()
        # Tracing calls of Python functions would hide everything else and slow down the steps.
        options.python_tracer_level = 0
        jax.profiler.start_trace(
            self._directory, create_perfetto_trace=True, profiler_options=options
        )
        self._open_since = self._number

    def _abandon(self) -> None:
        """Drops a trace without a step; another pass over the data may have the first step."""
        if self._open_since > self._number:
            self._open_since = 0
            jax.profiler.stop_trace()
            shutil.rmtree(_newest_trace(self._directory))

    def _stop(self, *, wait: bool = True) -> None:
        since, self._open_since = self._open_since, 0
        self._traced = True
        if wait:
            jax.block_until_ready(self._result)
        with self._paused():
            jax.profiler.stop_trace()
            folder = _newest_trace(self._directory)
            steps = f"steps {self._done + since} to {self._done + self._number}"
            self._say(
                f"trace of {steps}: open {folder}/perfetto_trace.json.gz at "
                f"https://ui.perfetto.dev, or run: xprof server --logdir {self._directory}"
            )
            _save_memory(folder)


def _newest_trace(directory: Path) -> Path:
    folders = (directory / "plugins" / "profile").iterdir()
    return max(
        (folder for folder in folders if not folder.is_symlink()),
        key=lambda folder: folder.stat().st_mtime,
    )


def _save_memory(folder: Path) -> None:
    """Saves the allocations on the devices for `pprof`.

    Devices that keep no count, such as a CPU, would only list arrays of the host.
    """
    if any(device.memory_stats() for device in jax.local_devices()):
        jax.profiler.save_device_memory_profile(str(folder / "memory.prof"))
