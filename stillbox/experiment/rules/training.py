"""Rules about training and its data."""

import itertools
import re
from collections.abc import Iterator

from stillbox.experiment.rules.broken import Broken, Rule
from stillbox.experiment.schema import (
    CosineSchedule,
    Experiment,
    ManualStepSchedule,
)


def cosine_fits(experiment: Experiment) -> Iterator[Broken]:
    """The warm-up rises, and ends before the decay does (fact sheet 3.8)."""
    schedule, path = experiment.train.optimizer.schedule, "train.optimizer.schedule"
    if not isinstance(schedule, CosineSchedule):
        return
    start = schedule.warmup_steps + schedule.hold_steps
    if schedule.total_steps <= start:
        yield Broken(
            f"{path}.total_steps",
            f"total_steps {schedule.total_steps} leaves nothing after {schedule.warmup_steps} "
            f"warmup_steps and {schedule.hold_steps} hold_steps",
            "raise it, or shorten the warm-up",
        )
    if schedule.final_learning_rate > schedule.learning_rate:
        yield Broken(
            f"{path}.final_learning_rate",
            f"final_learning_rate {schedule.final_learning_rate} is above learning_rate "
            f"{schedule.learning_rate}, so the decay would rise",
            "lower it",
        )
    # Without warm-up steps its rate is never used.
    if schedule.warmup_steps and schedule.learning_rate < schedule.warmup_learning_rate:
        yield Broken(
            f"{path}.warmup_learning_rate",
            f"warmup_learning_rate {schedule.warmup_learning_rate} is above learning_rate "
            f"{schedule.learning_rate}, so the warm-up would fall",
            "lower it",
        )


def boundaries_rise(experiment: Experiment) -> Iterator[Broken]:
    """Manual steps are in order, and a warm-up has somewhere to go."""
    schedule, path = experiment.train.optimizer.schedule, "train.optimizer.schedule"
    if not isinstance(schedule, ManualStepSchedule):
        return
    steps = [boundary.step for boundary in schedule.schedule]
    for index, (before, after) in enumerate(itertools.pairwise(steps)):
        if after <= before:
            yield Broken(
                f"{path}.schedule.{index + 1}.step",
                f"step {after} follows step {before}",
                "put the boundaries in rising order",
            )
    if schedule.warmup and not steps:
        yield Broken(
            f"{path}.warmup",
            "warmup goes to the first scheduled rate, but the schedule is empty",
            "add a boundary, or set warmup to false",
        )


def annotations_are_for_scoring(experiment: Experiment) -> Iterator[Broken]:
    """Training learns from its records."""
    if experiment.data.train.annotations:
        yield Broken(
            "data.train.annotations",
            "annotations are the ground truth of evaluation; training learns from its records",
            "move them to data.evaluation.annotations",
        )


def patterns_compile(experiment: Experiment) -> Iterator[Broken]:
    """Regular expressions are regular expressions."""
    patterns = {
        "train.freeze": experiment.train.freeze,
        "train.trainable": experiment.train.trainable,
        "train.fine_tune.skip": experiment.train.fine_tune.skip,
    }
    for path, texts in patterns.items():
        for text in texts:
            try:
                re.compile(text)
            except re.error as error:
                yield Broken(path, f"{text!r} is no regular expression: {error}", "see Python's re")


def stopping_early_needs_scores(experiment: Experiment) -> Iterator[Broken]:
    """Early stopping looks at evaluations during training."""
    if experiment.train.early_stopping is not None and not experiment.train.evaluate_every:
        yield Broken(
            "train.early_stopping",
            "early_stopping without evaluations during training never stops",
            "set train.evaluate_every",
        )


def stopping_early_has_a_reason(experiment: Experiment) -> Iterator[Broken]:
    """Without patience there is a target, and nothing that only patience looks at."""
    stopping, path = experiment.train.early_stopping, "train.early_stopping"
    if stopping is None or stopping.patience:
        return
    if stopping.target is None:
        yield Broken(
            f"{path}.patience",
            "early_stopping with patience 0 and without a target never stops",
            "give a target or a patience of 1 or more",
        )
    if stopping.min_delta:
        yield Broken(
            f"{path}.min_delta",
            f"min_delta {stopping.min_delta} has no effect while patience is 0",
            "take it out, or give a patience of 1 or more",
        )


TRAINING_RULES: tuple[Rule, ...] = (
    cosine_fits,
    boundaries_rise,
    annotations_are_for_scoring,
    patterns_compile,
    stopping_early_needs_scores,
    stopping_early_has_a_reason,
)
"""All of them."""
