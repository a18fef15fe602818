"""Observers of a run: reports, checkpoints, evaluations and signals look at every step."""

from collections.abc import Callable, Mapping, Sequence
from signal import Signals
from typing import Any, NamedTuple

import jax

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.devices import job
from stillbox.training.progress import RunProgress
from stillbox.training.signals import StopRequest
from stillbox.training.state import TrainState
from stillbox.training.summaries import Summaries


class RunContext(NamedTuple):
    """The files and the signals that a run has open."""

    directory: ModelDirectory
    summaries: Summaries
    progress: RunProgress
    stop: StopRequest


class Moment(NamedTuple):
    """The run after a step."""

    step: int
    """Updates done."""
    state: TrainState
    metrics: Sequence[tuple[int, dict[str, float]]]
    """Step and metrics of the steps that were fetched since the moment before."""
    is_kept: bool
    """Whether the state is to be saved."""
    asked: int
    """Number of the signal that asks the run to end; 0: none."""


class RunObserver:
    """Looks at a run after every step; this one does nothing."""

    def due(self, step: int) -> bool:
        """Returns whether the state after a step is to be saved."""
        return False

    def after(self, moment: Moment) -> str:
        """Looks at the run after a step.

        Returns:
            Why the run ends; empty: it goes on.
        """
        return ""


class Checkpoints(RunObserver):
    """Saves states into the model directory.

    Args:
        every: steps between two checkpoints.
        stop_at: last step of the run, which is always saved; None: the run has no end.
        metadata: returns what is stored beside the state of a step.
    """

    def __init__(
        self,
        directory: ModelDirectory,
        every: int,
        stop_at: int | None,
        metadata: Callable[[int], Mapping[str, Any]],
    ) -> None:
        self._directory, self._every, self._stop_at = directory, every, stop_at
        self._metadata = metadata

    def due(self, step: int) -> bool:
        """Returns whether a step is the last or one of the regular ones."""
        return step % self._every == 0 or step == self._stop_at

    def after(self, moment: Moment) -> str:
        """Saves the state of a step that is to be saved."""
        if moment.is_kept:
            self.save(moment.step, moment.state)
        return ""

    def save(self, step: int, state: TrainState) -> None:
        """Saves a state; the files are written while training goes on."""
        with jax.transfer_guard("allow"):
            arrays = job.replicated_tree(state._asdict())
            self._directory.save(step, arrays, dict(self._metadata(step)), wait=False)


class StopAtSignal(RunObserver):
    """Ends a run that a signal asks to end, unless the step is the last anyway."""

    def __init__(self, stop_at: int | None) -> None:
        self._stop_at = stop_at
        self.signal = 0
        """Number of the signal that ended the run; 0: none."""

    def after(self, moment: Moment) -> str:
        """Returns the sentence about the signal, if there is one."""
        if not moment.asked or moment.step == self._stop_at:
            return ""
        return self.end(moment.asked, moment.step)

    def end(self, number: int, step: int, why: str = "") -> str:
        """Notes the signal that ended the run after a step, and returns the sentence about it."""
        self.signal = number
        return f"stopped by {Signals(number).name} after step {step}{why}; run again to go on"
