"""What follows from the length of a run and from the size of a replica's batch.

Schedules follow the length of a run. Settings per replica refer to the number of images of a
replica.
"""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, TypeVar

from stillbox.experiment import schema
from stillbox.experiment.values import Value, sections_of
from stillbox.printing import count_text

Section = TypeVar("Section", bound=Any)

_PATH = "train.optimizer.schedule"
# The part of an open cosine that an open warm-up takes.
_WARMUP = 20


def resolve_schedule(experiment: schema.Experiment) -> tuple[schema.Experiment, tuple[str, ...]]:
    """Replaces what a schedule leaves open by what follows from `train.steps`.

    A cosine without `total_steps` ends with training; its warm-up gives way where it does not fit.
    Without an end of training the cosine stays open, which a rule refuses.

    Returns:
        The experiment, and a warning if a warm-up was shortened.
    """
    train = experiment.train
    schedule, warnings = train.optimizer.schedule, tuple[str, ...]()
    if not isinstance(schedule, schema.CosineSchedule):
        return experiment, ()
    total = schedule.total_steps or train.steps
    if not total:
        return experiment, ()
    short = max(1, total // _WARMUP)
    warmup = short if schedule.warmup_steps is None else schedule.warmup_steps
    if schedule.total_steps is None and total <= warmup + schedule.hold_steps:
        if warmup != short and short + schedule.hold_steps < total:
            warnings = (
                f"{_PATH}.warmup_steps: a warm-up of {count_text(warmup, 'step')} does not fit "
                f"into a run of {total}: it takes {short}",
            )
            warmup = short
        elif total == 1:
            warmup = 0
    settled = dataclasses.replace(schedule, total_steps=total, warmup_steps=warmup)
    return _with_schedule(experiment, settled), warnings


def with_steps(experiment: schema.Experiment, steps: int) -> schema.Experiment:
    """Returns the experiment with another number of steps and its schedule stretched to them.

    Every number of steps in the schedule changes in proportion: the end of a cosine, its warm-up,
    boundaries, steps of a decay; so do the first steps of a loss, those before rounding begins, and
    the last steps without an augmentation. A run without an end is taken to end with its cosine;
    other schedules of such a run stay as they are. A constant schedule knows no end and stays too,
    with its warm-up.
    """
    train = experiment.train
    schedule = train.optimizer.schedule
    before = train.steps or getattr(schedule, "total_steps", None)
    longer = dataclasses.replace(experiment, train=dataclasses.replace(train, steps=steps))
    if not before:
        return longer
    longer = dataclasses.replace(longer, model=_with_initial(experiment.model, steps, before))
    longer = _with_parts_of_training(longer, steps, before)
    if isinstance(schedule, schema.ConstantSchedule):
        return longer
    stretched = _stretched(schedule, steps, before)
    if isinstance(stretched, schema.ManualStepSchedule):
        stretched = _rising(stretched)
    if isinstance(stretched, schema.CosineSchedule):
        stretched = _falling(stretched)
    return _with_schedule(longer, stretched)


def _with_initial(model: schema.Model, after: int, before: int) -> schema.Model:
    """Returns the model with the first steps of its loss stretched."""
    if not isinstance(model, schema.OneStage):
        return model
    loss = model.loss
    if not isinstance(loss, schema.QualityLoss) or loss.initial is None:
        return model
    initial = _stretched(loss.initial, after, before)
    return dataclasses.replace(model, loss=dataclasses.replace(loss, initial=initial))


def _rising(schedule: schema.ManualStepSchedule) -> schema.ManualStepSchedule:
    """Returns the schedule with its boundaries apart, where rounding put two into one step."""
    steps = list(accumulate((at.step for at in schedule.schedule), lambda a, b: max(a + 1, b)))
    apart = zip(schedule.schedule, steps, strict=True)
    return dataclasses.replace(
        schedule, schedule=tuple(dataclasses.replace(at, step=step) for at, step in apart)
    )


def _falling(schedule: schema.CosineSchedule) -> schema.CosineSchedule:
    """Returns the cosine with a step left to fall in, where rounding took the last one."""
    if schedule.total_steps is None:
        return schedule
    left = schedule.total_steps - 1
    hold = min(schedule.hold_steps, left)
    warmup = min(schedule.warmup_steps or 0, left - hold)
    return dataclasses.replace(schedule, hold_steps=hold, warmup_steps=warmup)


def with_batch(experiment: schema.Experiment, batch_size: int) -> schema.Experiment:
    """Returns the experiment with another batch and its rates in proportion (arXiv:1706.02677)."""
    train = experiment.train
    factor = batch_size / train.batch_size
    changed = dataclasses.replace(train, batch_size=batch_size)
    return _with_schedule(
        dataclasses.replace(experiment, train=changed), _scaled(train.optimizer.schedule, factor)
    )


def _stretched(section: Section, after: int, before: int) -> Section:
    """Multiplies every number of steps in a section by `after / before`."""

    def stretched(name: str, value: Value) -> Value:
        if not name.endswith(("step", "steps")) or not isinstance(value, int):
            return value
        return _in_proportion(value, after, before)

    return _mapped(section, stretched)


def _in_proportion(steps: int, after: int, before: int) -> int:
    # A number above 0 stays above it: 0 switches a part of the schedule off.
    return max(1, round(steps * after / before)) if steps else 0


def _with_parts_of_training(
    experiment: schema.Experiment, after: int, before: int
) -> schema.Experiment:
    """Returns the experiment with the steps of augmentations and of rounding in proportion."""

    def stretched(augmentation: schema.Augmentation) -> schema.Augmentation:
        if not isinstance(augmentation, schema.StrongAugmentation):
            return augmentation
        skipped = _in_proportion(augmentation.skip_last_steps, after, before)
        return dataclasses.replace(augmentation, skip_last_steps=skipped)

    train, rounding = experiment.train, experiment.train.quantization
    if rounding is not None:
        delay = _in_proportion(rounding.delay, after, before)
        rounding = dataclasses.replace(rounding, delay=delay)
    augmentations = tuple(map(stretched, train.augmentations))
    train = dataclasses.replace(train, augmentations=augmentations, quantization=rounding)
    return dataclasses.replace(experiment, train=train)


def _scaled(section: Section, factor: float) -> Section:
    """Multiplies every learning rate in a section."""
    return _mapped(
        section, lambda name, value: value * factor if name.endswith("learning_rate") else value
    )


def _mapped(section: Section, change: Callable[[str, Value], Value]) -> Section:
    changed: dict[str, Value] = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        changed[field.name] = (
            tuple(_mapped(item, change) for item in value)
            if isinstance(value, tuple)
            else change(field.name, value)
        )
    return dataclasses.replace(section, **changed)


def _with_schedule(experiment: schema.Experiment, schedule: schema.Schedule) -> schema.Experiment:
    train = experiment.train
    optimizer = dataclasses.replace(train.optimizer, schedule=schedule)
    return dataclasses.replace(experiment, train=dataclasses.replace(train, optimizer=optimizer))


Part = TypeVar("Part")
AnyModel = TypeVar("AnyModel", bound=schema.Model)


def replicas_as_groups(model: AnyModel, batch_size: int, replicas: int) -> AnyModel:
    """Returns a model with statistics of `groups` in place of `per_replica`.

    Layers are then independent of devices: a replica is `batch_size / replicas` images that
    follow each other in a training step. A single replica is the whole batch, which is `global`.
    """

    def group(norm: schema.BatchNorm) -> schema.BatchNorm:
        if norm.statistics != "per_replica":
            return norm
        if replicas == 1:
            return dataclasses.replace(norm, statistics="global")
        size = batch_size // replicas
        return dataclasses.replace(norm, statistics="groups", group_size=size)

    replaced: AnyModel = _replace_norms(model, group)
    return replaced


def groups_of_crops(part: Part, crops: int) -> Part:
    """Returns a part for an input of so many crops for each image, the groups enlarged alike."""

    def enlarge(norm: schema.BatchNorm) -> schema.BatchNorm:
        return dataclasses.replace(norm, group_size=norm.group_size * crops)

    replaced: Part = _replace_norms(part, enlarge)
    return replaced


def depends_on_replicas(model: schema.Model) -> bool:
    """Returns whether a model has settings per replica."""
    norms = any(norm.statistics == "per_replica" for _, norm in batch_norms(model))
    return norms or model.normalizes_per_replica


def batch_norms(model: schema.Model) -> Iterator[tuple[str, schema.BatchNorm]]:
    """Yields the batch norms of a model, each with its dotted path."""
    for path, section in sections_of(model, "model"):
        if isinstance(section, schema.BatchNorm):
            yield path, section


def _replace_norms(part: Value, change: Callable[[schema.BatchNorm], schema.BatchNorm]) -> Value:
    if isinstance(part, tuple):
        return tuple(_replace_norms(item, change) for item in part)
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    if isinstance(part, schema.BatchNorm):
        return change(part)
    inside = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    changes = {
        name: changed
        for name, value in inside.items()
        if (changed := _replace_norms(value, change)) is not value and changed != value
    }
    return dataclasses.replace(part, **changes) if changes else part
