"""Is the learning rate one that this batch can be trained with?"""

import math
from collections.abc import Iterator, Mapping

from stillbox.checking.advice.advice import Advice, Counsel
from stillbox.experiment.schema import (
    ConstantSchedule,
    CosineSchedule,
    Experiment,
    ExponentialSchedule,
    ManualStepSchedule,
    Momentum,
    Schedule,
)

_PATH = "train.optimizer.schedule"
# Rates at which the TPU configs were trained with a momentum of .9: batch -> rate (fact sheet 2.2).
_PUBLISHED = {64: 0.04, 512: 0.7, 1024: 0.9}
_PUBLISHED_MOMENTUM = 0.9
# By how much a rate may differ from all of them before it is out of scale: between the published
# ones lies a factor of 2.2 already.
_TOO_HIGH, _TOO_LOW = 3.0, 10.0


def rate_fits_the_batch(experiment: Experiment, origins: Mapping[str, str]) -> Iterator[Advice]:
    """The linear rule (arXiv:1706.02677): a batch of half the size wants half the rate."""
    train = experiment.train
    # Adaptive optimisers scale their steps themselves; no rule holds for them.
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


def a_high_rate_is_warmed_up(
    experiment: Experiment, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """The seed of large batches: a large rate is reached in a straight line, not at once."""
    optimizer = experiment.train.optimizer
    schedule = optimizer.schedule
    peak = peak_rate(schedule)
    warmed = (
        (isinstance(schedule, CosineSchedule) and schedule.warmup_steps > 0)
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


RATE_COUNSELS: tuple[Counsel, ...] = (rate_fits_the_batch, a_high_rate_is_warmed_up)
"""All of them."""
