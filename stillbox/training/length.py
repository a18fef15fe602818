"""The length of a run as the command line gives it: steps, or passes over the samples."""

import math
from collections.abc import Iterable
from dataclasses import replace

from stillbox.errors import UserError
from stillbox.experiment.resolve import Resolved, resolve_reading
from stillbox.experiment.rules import check_trainable
from stillbox.experiment.run_length import with_steps
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import NO_CHANGES, Changes
from stillbox.inputs.tiles import ImageTiles
from stillbox.records.source import ExampleSource
from stillbox.references import Parameter

_MOST = 2**31
_STRETCHED = ("train.optimizer.", "train.augmentations.", "train.quantization")
"""What begins the paths of fields that follow the length."""
# Of the minutes that are suggested, for steps; the others are for evaluations.
_SUGGESTED, _FOR_STEPS = (5, 15, 60), 0.9


def set_length(
    read: Resolved,
    overrides: Changes = NO_CHANGES,
    *,
    steps: int | None = None,
    epochs: float | None = None,
) -> Resolved:
    """Checks an experiment, after changing its length and stretching its schedule to it.

    The last steps without an augmentation, and those before rounding, are stretched too.

    Args:
        read: the experiment with its overrides, not yet checked against the rules.
        overrides: the overrides in `read`; fields of the optimiser, of augmentations and of
            rounding that they set are not stretched.
        steps: number of steps of the run; None: as `read` says.
        epochs: passes over the training records, in place of `steps`.

    Raises:
        UserError: the length is given twice or is not positive, or the experiment contradicts
            itself.
    """
    if steps is None and epochs is None:
        return resolve_reading(read, read.source)
    refuse_lengths(overrides, steps=steps, epochs=epochs)
    option = f"{Parameter('steps')}" if epochs is None else f"{Parameter('epochs')}"
    length = steps if epochs is None else epochs
    if not length or not 0 < length < _MOST:
        raise UserError(f"a run of {length} is none", where=option, fix=f"for example {option} 10")
    steps = int(length) if epochs is None else steps_of(read.experiment, length)
    longer = replace(read, experiment=with_steps(read.experiment, steps))
    fixed = {path: value for path, value in overrides.items() if path.startswith(_STRETCHED)}
    return resolve_reading(longer, read.source, fixed)


def refuse_lengths(overrides: Changes, **lengths: float | None) -> None:
    """Refuses more than one length of a run.

    Args:
        overrides: changes of fields, `train.steps` perhaps among them.
        lengths: by the parameter that gives it; None: it is not given.

    Raises:
        UserError: there is more than one.
    """
    given = [Parameter(name) for name, length in lengths.items() if length is not None]
    if len(given) > 1:
        fix = f"leave {given[0]} or it out"
        raise UserError("a run has one length", where=given[-1], fix=fix)
    if given and "train.steps" in overrides:
        fix = "leave train.steps out of what is set"
        raise UserError("a run has one length", where=given[0], fix=fix)


def minutes_in_steps(start: float, step: float) -> str:
    """Returns what some numbers of minutes would be in steps, and how to ask for them.

    Args:
        start: seconds of a run before its first step.
        step: seconds of a step.
    """
    steps = {
        minutes: _FOR_STEPS * (60 * minutes - start) / step
        for minutes in _SUGGESTED
        if 60 * minutes > start + step
    }
    if not steps:
        return ""
    minutes = _listed(map(str, steps))
    numbers = _listed(f"{float(f'{number:.2g}'):,.0f}" for number in steps.values())
    ask = Parameter("minutes", str(min(steps)))
    return f"{minutes} minutes would be about {numbers} steps ({ask} asks for it)"


def _listed(texts: Iterable[str]) -> str:
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def steps_of(experiment: Experiment, epochs: float) -> int:
    """Returns the steps of so many passes over the training images or tiles, rounded up.

    Raises:
        UserError: there are no records.
    """
    records = experiment.data.train
    if not records.paths:
        check_trainable(experiment, {})
    source = ExampleSource(
        records.paths, bad_records=experiment.data.bad_records, sample_1_of_n=records.sample_1_of_n
    )
    tiles = experiment.data.tiles
    samples = len(source if tiles is None else ImageTiles.measure(source, tiles))
    # The rules refuse batches below 1, later.
    return max(1, math.ceil(samples * epochs / max(experiment.train.batch_size, 1)))
