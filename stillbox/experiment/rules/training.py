"""Rules about training and its data."""

import itertools
from collections.abc import Iterator

from stillbox.errors import UserError
from stillbox.experiment.rules.rule import Broken, rule
from stillbox.experiment.schema import (
    CosineSchedule,
    EarlyStopping,
    Experiment,
    ManualStepSchedule,
    Training,
)
from stillbox.textformat.name_patterns import NamePattern


@rule(CosineSchedule)
def cosine_fits(schedule: CosineSchedule) -> Iterator[Broken]:
    """The warm-up rises, and ends no later than the decay does."""
    warmup_steps = schedule.warmup_steps or 0
    if schedule.total_steps and schedule.total_steps < warmup_steps:
        what = f"total_steps {schedule.total_steps} is less than {warmup_steps} warmup_steps"
        yield Broken("total_steps", what, "raise it, or shorten the warm-up")
    # Without warm-up steps its rate is never used.
    used = {"final_learning_rate": "decay would rise"}
    if warmup_steps:
        used["warmup_learning_rate"] = "warm-up would fall"
    for name, consequence in used.items():
        if getattr(schedule, name) > schedule.learning_rate:
            yield Broken(
                name,
                f"{name} {getattr(schedule, name)} is above learning_rate "
                f"{schedule.learning_rate}, so the {consequence}",
                "lower it",
            )


@rule(ManualStepSchedule)
def boundaries_rise(schedule: ManualStepSchedule) -> Iterator[Broken]:
    """Manual steps are in order, and a warm-up has a rate to end at."""
    steps = [boundary.step for boundary in schedule.schedule]
    for index, (before, after) in enumerate(itertools.pairwise(steps)):
        if after <= before:
            what = f"step {after} follows step {before}"
            fix = "put the boundaries in rising order"
            yield Broken(f"schedule.{index + 1}.step", what, fix)
    if schedule.warmup and not any(steps[:1]):
        found = "is at step 0" if steps else "does not exist: the schedule is empty"
        yield Broken(
            "warmup",
            f"warmup goes to the first scheduled rate, which {found}",
            "add a boundary, or set warmup to false",
        )


@rule(Experiment)
def annotations_are_for_scoring(experiment: Experiment) -> Iterator[Broken]:
    """Training reads the boxes of its records."""
    if experiment.data.train.annotations:
        yield Broken(
            "data.train.annotations",
            "annotations are the ground truth of evaluation; training learns from its records",
            "move them to data.evaluation.annotations",
        )


@rule(Experiment)
def reduced_images_can_be_read(experiment: Experiment) -> Iterator[Broken]:
    """Images are reduced by their decoder, for methods that place them as whole ones."""
    path, method = "data.reduced_decoding", experiment.model.resizer.method
    if not experiment.data.reduced_decoding:
        return
    if experiment.data.cache_images:
        what = "data.cache_images keeps whole images, so that none is reduced"
        yield Broken(path, what, "use one of the two")
    if method not in ("bilinear", "bilinear_antialias"):
        what = f"the resizer's method {method} reads whole images"
        yield Broken(path, what, "leave it out, or take bilinear or bilinear_antialias")


@rule(Training)
def patterns_compile(train: Training) -> Iterator[Broken]:
    """Regular expressions are some, and are found in any name in little time."""
    patterns = {
        "freeze": train.freeze,
        "trainable": train.trainable,
        "fine_tune.skip": train.fine_tune.skip,
    }
    for path, texts in patterns.items():
        for text in texts:
            try:
                NamePattern(text)
            except UserError as error:
                yield Broken(path, error.what, error.fix or "")


@rule(Training)
def average_from_zero_grows(train: Training) -> Iterator[Broken]:
    """An average that starts at 0 forgets it in its first steps, by the warm-up."""
    if train.ema_decay is not None and train.ema_from_zero and not train.ema_warmup:
        what = "an average that starts at 0 is too small until it has forgotten its start"
        yield Broken("ema_from_zero", what, "set ema_warmup to true, or ema_from_zero to false")


@rule(Training)
def early_stopping_has_scores(train: Training) -> Iterator[Broken]:
    """Early stopping depends on evaluations during training."""
    if train.early_stopping is not None and not train.evaluate_every:
        what = "early_stopping without evaluations during training never stops"
        yield Broken("early_stopping", what, "set train.evaluate_every")


@rule(EarlyStopping)
def early_stopping_has_a_reason(stopping: EarlyStopping) -> Iterator[Broken]:
    """Without patience there is a target, and no option of patience."""
    if stopping.patience:
        return
    if stopping.target is None:
        yield Broken(
            "patience",
            "early_stopping with patience 0 and without a target never stops",
            "give a target or a patience of 1 or more",
        )
    if stopping.min_delta:
        yield Broken(
            "min_delta",
            f"min_delta {stopping.min_delta} has no effect while patience is 0",
            "take it out, or give a patience of 1 or more",
        )
