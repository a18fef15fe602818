"""Do the schedule and the number of steps belong together?"""

import math
from collections.abc import Iterator, Mapping

from stillbox.checking.advice.advice import Advice, Counsel
from stillbox.experiment.schema import (
    CosineSchedule,
    Experiment,
    ExponentialSchedule,
    ManualStepSchedule,
)

_PATH = "train.optimizer.schedule"
# A cosine is down to 2.4 % of its rate after nine tenths of its decay.
_NEARLY_DONE = 0.9


def warm_up_ends(experiment: Experiment, origins: Mapping[str, str]) -> Iterator[Advice]:
    """A warm-up is followed by training."""
    schedule, steps = experiment.train.optimizer.schedule, experiment.train.steps
    name, length = "", 0
    if isinstance(schedule, CosineSchedule):
        name, length = "warmup_steps", schedule.warmup_steps + schedule.hold_steps
    elif isinstance(schedule, ManualStepSchedule) and schedule.warmup and schedule.schedule:
        name, length = "warmup", schedule.schedule[0].step
    elif isinstance(schedule, ExponentialSchedule):
        name, length = "burnin_steps", schedule.burnin_steps
    if 0 < steps <= length:
        yield Advice(
            "warning",
            f"{_PATH}.{name}",
            f"the warm-up takes {length} steps and training {steps}: the rate never gets to fall",
            f"shorten it to some {max(1, steps // 20)} steps, or raise train.steps",
        )


def cosine_ends_with_training(
    experiment: Experiment, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """A cosine is made for its end: the last steps with a small rate gain most."""
    schedule, steps = experiment.train.optimizer.schedule, experiment.train.steps
    if not isinstance(schedule, CosineSchedule):
        return
    total, path = schedule.total_steps, f"{_PATH}.total_steps"
    start = schedule.warmup_steps + schedule.hold_steps
    if not steps:
        yield Advice(
            "warning",
            "train.steps",
            f"training has no end, and the learning rate is 0 from step {total} on",
            f"--set train.steps={total}",
        )
    elif start < steps < start + _NEARLY_DONE * (total - start):
        rate = 0.5 * (1 + math.cos(math.pi * (steps - start) / (total - start)))
        yield Advice(
            "warning",
            path,
            f"training ends at step {steps} of a schedule of {total}: the learning rate is still "
            f"at {100 * rate:.0f} % of its height",
            f"--set {path}={steps}",
        )


def rates_are_reached(experiment: Experiment, origins: Mapping[str, str]) -> Iterator[Advice]:
    """Steps of a schedule that come after the end of training do nothing."""
    schedule, steps = experiment.train.optimizer.schedule, experiment.train.steps
    if isinstance(schedule, ManualStepSchedule) and steps:
        late = [boundary.step for boundary in schedule.schedule if boundary.step >= steps]
        if late:
            yield Advice(
                "warning",
                f"{_PATH}.schedule.{len(schedule.schedule) - len(late)}.step",
                f"the rate of step {late[0]} is never used: training ends at step {steps}",
                "move the boundary forward, or raise train.steps",
            )
    if isinstance(schedule, ExponentialSchedule) and 0 < steps <= schedule.decay_steps:
        falls = "falls" if schedule.staircase else "has fallen by one factor"
        yield Advice(
            "note",
            f"{_PATH}.decay_steps",
            f"the rate {falls} only after {schedule.decay_steps} steps, and training has {steps}",
            f"for ten steps down: --set {_PATH}.decay_steps={max(1, steps // 10)}",
        )


def epochs_last(experiment: Experiment, origins: Mapping[str, str]) -> Iterator[Advice]:
    """Passes over the data end training before its steps do."""
    epochs = experiment.data.train.num_epochs
    if epochs and experiment.train.steps:
        yield Advice(
            "note",
            "data.train.num_epochs",
            f"training ends after {epochs} passes over the records, or after "
            f"{experiment.train.steps} steps, whichever comes first",
        )


STEP_COUNSELS: tuple[Counsel, ...] = (
    warm_up_ends,
    cosine_ends_with_training,
    rates_are_reached,
    epochs_last,
)
"""All of them."""
