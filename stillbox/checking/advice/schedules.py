"""The learning rate schedule: its height for the batch, its length for the steps."""

import math

from stillbox.checking.advice.advice import Advice, Findings, Origins
from stillbox.experiment.schema import (
    ConstantSchedule,
    CosineSchedule,
    Experiment,
    ExponentialSchedule,
    ManualStepSchedule,
    Momentum,
    Schedule,
)
from stillbox.printing import count_text

_PATH = "train.optimizer.schedule"
# Batch -> rate of the published configs for TPUs, with a momentum of .9.
_PUBLISHED = {64: 0.04, 512: 0.7, 1024: 0.9}
_PUBLISHED_MOMENTUM = 0.9
# Factors by which a rate may differ from all of them; among themselves they differ by 2.2.
_TOO_HIGH, _TOO_LOW = 3.0, 10.0
# A cosine is down to 2.4 % of its rate after nine tenths of its decay.
_NEARLY_DONE = 0.9


def rate_fits_the_batch(experiment: Experiment, origins: Origins) -> Findings:
    """The linear scaling rule (arXiv:1706.02677): half the batch needs half the rate."""
    train = experiment.train
    # Adaptive optimizers scale their steps themselves; no rule holds for them.
    if not isinstance(train.optimizer, Momentum) or train.optimizer.momentum >= 1.0:
        return
    # A momentum m makes every gradient count 1 / (1 - m) times.
    reach = (1 - _PUBLISHED_MOMENTUM) / (1 - train.optimizer.momentum)
    peak = peak_rate(train.optimizer.schedule)
    fitting = {batch: rate * train.batch_size / batch / reach for batch, rate in _PUBLISHED.items()}
    low, high = min(fitting.values()), max(fitting.values())
    if low / _TOO_LOW <= peak <= high * _TOO_HIGH or peak == 0:
        return
    closest = min(_PUBLISHED, key=lambda batch: abs(math.log(batch / train.batch_size)))
    scaled = fitting[closest]
    effect = "such runs end in NaN" if peak > high else "such runs hardly learn"
    yield Advice(
        # A rate that is too low costs time; it can be meant, where good weights are only adjusted.
        "warning" if peak > high else "note",
        f"{_PATH}.learning_rate",
        f"a learning rate of {peak:g} is out of scale with a batch of {train.batch_size}: "
        f"{effect}; the linear rule gives {scaled:.2g} (published: {_PUBLISHED[closest]:g} for "
        f"{closest}), and {low:.2g} to {high:.2g} over all published rates",
        _scaling(train.optimizer.schedule, scaled / peak),
    )


def peak_rate(schedule: Schedule) -> float:
    """Returns the highest rate of a schedule."""
    if isinstance(schedule, ManualStepSchedule):
        return max(schedule.learning_rate, *(step.learning_rate for step in schedule.schedule), 0.0)
    if isinstance(schedule, ExponentialSchedule):
        return max(schedule.learning_rate, schedule.burnin_learning_rate)
    return schedule.learning_rate


def _scaling(schedule: Schedule, factor: float) -> str:
    """Returns the options that multiply all rates of a schedule."""
    if isinstance(schedule, ManualStepSchedule):
        return f"multiply learning_rate and every scheduled rate by {factor:.2g}"
    rates = {"learning_rate": schedule.learning_rate}
    if isinstance(schedule, CosineSchedule) and schedule.warmup_steps:
        rates["warmup_learning_rate"] = schedule.warmup_learning_rate
    if isinstance(schedule, ExponentialSchedule) and schedule.burnin_learning_rate:
        rates["burnin_learning_rate"] = schedule.burnin_learning_rate
    return " ".join(f"--set {_PATH}.{name}={rate * factor:.2g}" for name, rate in rates.items())


def a_high_rate_is_warmed_up(experiment: Experiment, origins: Origins) -> Findings:
    """A large rate is reached gradually."""
    optimizer = experiment.train.optimizer
    schedule = optimizer.schedule
    peak = peak_rate(schedule)
    warmed = (
        (isinstance(schedule, CosineSchedule) and bool(schedule.warmup_steps))
        or (isinstance(schedule, ManualStepSchedule) and schedule.warmup)
        or (isinstance(schedule, ExponentialSchedule) and schedule.burnin_steps > 0)
    )
    if isinstance(optimizer, Momentum) and not warmed and peak >= min(_PUBLISHED.values()):
        kind = "cosine" if isinstance(schedule, ConstantSchedule) else schedule.kind
        yield Advice(
            "warning",
            f"{_PATH}.learning_rate",
            f"a learning rate of {peak:g} from the first step on, without a warm-up",
            {
                "cosine": f"take a cosine with {_PATH}.warmup_steps, for example 1000",
                "manual_step": f"--set {_PATH}.warmup=true",
                "exponential": f"set {_PATH}.burnin_steps and burnin_learning_rate",
            }[kind],
        )


def warm_up_ends(experiment: Experiment, origins: Origins) -> Findings:
    """The warm-up is shorter than training."""
    schedule, steps = experiment.train.optimizer.schedule, experiment.train.steps
    name, length = "", 0
    if isinstance(schedule, CosineSchedule):
        name, length = "warmup_steps", (schedule.warmup_steps or 0) + schedule.hold_steps
    elif isinstance(schedule, ManualStepSchedule) and schedule.warmup and schedule.schedule:
        name, length = "warmup", schedule.schedule[0].step
    elif isinstance(schedule, ExponentialSchedule):
        name, length = "burnin_steps", schedule.burnin_steps
    if 0 < steps <= length:
        yield Advice(
            "warning",
            f"{_PATH}.{name}",
            f"the warm-up takes {count_text(length, 'step')} and training {steps:,}: the rate "
            "never gets to fall",
            f"shorten it to some {count_text(max(1, steps // 20), 'step')}, or raise train.steps",
        )


def cosine_ends_with_training(experiment: Experiment, origins: Origins) -> Findings:
    """A cosine ends with training: its last steps with a small rate improve the model most."""
    schedule, steps = experiment.train.optimizer.schedule, experiment.train.steps
    if not isinstance(schedule, CosineSchedule) or schedule.total_steps is None:
        return
    total, path = schedule.total_steps, f"{_PATH}.total_steps"
    start = (schedule.warmup_steps or 0) + schedule.hold_steps
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


def rates_are_reached(experiment: Experiment, origins: Origins) -> Findings:
    """Boundaries of a schedule after the end of training have no effect."""
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
            f"the rate {falls} only after {count_text(schedule.decay_steps, 'step')}, and training "
            f"has {steps:,}",
            f"for ten steps down: --set {_PATH}.decay_steps={max(1, steps // 10)}",
        )


def epochs_last(experiment: Experiment, origins: Origins) -> Findings:
    """A number of epochs may end training before its steps."""
    epochs = experiment.data.train.num_epochs
    if epochs and experiment.train.steps:
        yield Advice(
            "note",
            "data.train.num_epochs",
            f"training ends after {epochs} passes over the records, or after "
            f"{count_text(experiment.train.steps, 'step')}, whichever comes first",
        )
