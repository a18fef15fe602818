"""The largest batch that fits, found with few compilations."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from stillbox.checking.ahead_of_time.compiling import Say, check_step
from stillbox.checking.ahead_of_time.steps import StepCheck
from stillbox.checking.ahead_of_time.targets import Target
from stillbox.experiment import schema

# A compilation takes minutes: the result is at most a sixteenth below the largest batch.
_CLOSE = 16
_TRIALS = 10
_MOST = 2**14


@dataclass
class BatchSearch:
    """The trials of a search, in their order."""

    multiple: int
    """All batches are multiples of this."""
    trials: list[StepCheck] = field(default_factory=list)

    @property
    def best(self) -> StepCheck | None:
        """The largest batch that fits, if any."""
        fitting = [trial for trial in self.trials if trial.fits]
        return max(fitting, key=lambda trial: trial.images, default=None)

    @property
    def too_large(self) -> StepCheck | None:
        """The smallest batch that does not fit, if any."""
        others = [trial for trial in self.trials if not trial.fits]
        return min(others, key=lambda trial: trial.images, default=None)


def find_batch(
    experiment: schema.Experiment, target: Target, say: Say = lambda line: None
) -> BatchSearch:
    """Searches the largest `train.batch_size` that fits on a target; its own is tried first."""
    rows = len(target.devices) // max(experiment.devices.spatial_partitions, 1)
    multiple = math.lcm(rows, max(experiment.devices.replicas, 1))

    def attempt(size: int) -> StepCheck:
        train = replace(experiment.train, batch_size=size)
        return check_step(replace(experiment, train=train), target, "train", say)

    return search(attempt, multiple, experiment.train.batch_size, target.usable_bytes)


def search(
    attempt: Callable[[int], StepCheck], multiple: int, start: int, usable: float
) -> BatchSearch:
    """Searches the largest batch among the multiples of a number.

    The next batch is extrapolated from the memory of the last one; where that gives nothing new, it
    is the middle of the remaining range.

    Args:
        attempt: compiles the step for a batch size.
        multiple: all batches are multiples of this.
        start: the first batch, rounded to a multiple.
        usable: bytes of a device.
    """
    found = BatchSearch(multiple)
    size: int | None = max(round(start / multiple), 1) * multiple
    while size is not None and len(found.trials) < _TRIALS:
        trial = attempt(size)
        found.trials.append(trial)
        if not trial.fits and not trial.needed:
            break  # for another reason than memory: no other batch would do
        size = _next_size(found, usable)
    return found


def _next_size(found: BatchSearch, usable: float) -> int | None:
    """Returns the next batch to try; None where the best one is close enough."""
    multiple = found.multiple
    low = found.best.images if found.best else 0
    close = max(multiple, low // _CLOSE // multiple * multiple)
    guess = _predict(found.trials, usable) // multiple * multiple
    if found.too_large is None:
        # The compiler recomputes what does not fit: memory grows more slowly than predicted.
        size = min(max(guess, low + 2 * close), _MOST // multiple * multiple)
        return size if size > low else None
    high = found.too_large.images
    if high - low <= close:
        return None
    if low + close <= guess <= high - close:
        return guess
    return max((low + high) // 2 // multiple * multiple, low + multiple)


def _predict(trials: list[StepCheck], usable: float) -> int:
    """Returns the largest batch that fits if memory grows in proportion to it."""
    last = trials[-1]
    if last.memory is None:
        return int(last.images * usable / last.needed)
    memory = last.memory
    fixed = memory.parameters + memory.optimizer + memory.average + memory.code
    growing = max(memory.total - fixed, 1)
    return int(last.images * (usable - fixed) / growing)
