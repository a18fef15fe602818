"""The length of a run as the command line gives it: steps, or passes over the samples."""

import math
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
    option = f"{Parameter('steps')}" if epochs is None else f"{Parameter('epochs')}"
    if steps is not None and epochs is not None:
        raise UserError(
            "a run has one length",
            where=Parameter("epochs"),
            fix=f"leave {Parameter('steps')} or it out",
        )
    if "train.steps" in overrides:
        raise UserError(
            "a run has one length", where=option, fix="leave train.steps out of what is set"
        )
    length = steps if epochs is None else epochs
    if not length or not 0 < length < _MOST:
        raise UserError(f"a run of {length} is none", where=option, fix=f"for example {option} 10")
    steps = int(length) if epochs is None else steps_of(read.experiment, length)
    longer = replace(read, experiment=with_steps(read.experiment, steps))
    fixed = {path: value for path, value in overrides.items() if path.startswith(_STRETCHED)}
    return resolve_reading(longer, read.source, fixed)


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
