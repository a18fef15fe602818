"""What is allowed but is seldom meant."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from stillbox.experiment.replicas import depends_on_replicas
from stillbox.experiment.rules.augmentations import (
    contrasts_that_never_change,
    crops_that_are_resized_twice,
    values_that_only_training_sees,
)
from stillbox.experiment.rules.postprocessing import frames_that_differ
from stillbox.experiment.schema import ConvolutionalHead, CosineSchedule, Experiment, OneStage

_SHARD = re.compile(r"(?P<base>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>.*)")


def warnings_about(experiment: Experiment, origins: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a sentence, with its place, for everything that a person should look at."""
    return tuple(
        f"{origins.get(path, path)}: {sentence}" for path, sentence in seldom_meant(experiment)
    )


def seldom_meant(experiment: Experiment) -> list[tuple[str, str]]:
    """Returns the path and a sentence for everything that a person should look at."""
    model = experiment.model
    one_stage: list[tuple[str, str]] = []
    if isinstance(model, OneStage):
        one_stage = [*_layers_without_depth(model), *frames_that_differ(model)]
    return [
        *_single_shards(experiment),
        *_scores_without_records(experiment),
        *_steps_without_rate(experiment),
        *_one_batch_only(experiment),
        *_replicas_of_nothing(experiment),
        *values_that_only_training_sees(experiment),
        *crops_that_are_resized_twice(experiment),
        *contrasts_that_never_change(experiment),
        *one_stage,
    ]


def _single_shards(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """The sample configs name one shard of many (fact sheet 2.1)."""
    for path, paths in (
        ("data.train.paths", experiment.data.train.paths),
        ("data.evaluation.paths", experiment.data.evaluation.paths),
    ):
        for (base, count, suffix), given in _shards(paths).items():
            # All shards listed one by one are as good as the pattern.
            if given < int(count):
                yield (
                    path,
                    f"{given} of {int(count)} shards of {base}{suffix}; "
                    f"for all of them write {base}-?????-of-{count}{suffix}",
                )


def _shards(paths: Sequence[str]) -> dict[tuple[str, str, str], int]:
    numbers: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for match in filter(None, map(_SHARD.fullmatch, paths)):
        numbers[match["base"], match["count"], match["suffix"]].add(match["number"])
    return {key: len(found) for key, found in numbers.items()}


def _layers_without_depth(model: OneStage) -> Iterator[tuple[str, str]]:
    head = model.head
    if isinstance(head, ConvolutionalHead) and head.layers_before and not head.max_depth:
        yield (
            "model.head.layers_before",
            f"layers_before {head.layers_before} has no effect while max_depth is 0",
        )


def _scores_without_records(experiment: Experiment) -> Iterator[tuple[str, str]]:
    every = experiment.train.evaluate_every
    if every and not experiment.data.evaluation.paths:
        yield (
            "train.evaluate_every",
            f"evaluate_every {every} has no effect while data.evaluation.paths is empty",
        )


def _steps_without_rate(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Where a cosine ends at 0, training would go on without moving anything."""
    schedule, steps = experiment.train.optimizer.schedule, experiment.train.steps
    if not isinstance(schedule, CosineSchedule) or schedule.final_learning_rate:
        return
    if steps > schedule.total_steps:
        yield (
            "train.steps",
            f"the learning rate is 0 from step {schedule.total_steps} (total_steps of the "
            f"schedule) to step {steps}",
        )


def _replicas_of_nothing(experiment: Experiment) -> Iterator[tuple[str, str]]:
    model, replicas = experiment.model, experiment.devices.replicas
    if replicas and not depends_on_replicas(model):
        yield (
            "devices.replicas",
            f"replicas {replicas} has no effect: neither a batch norm's statistics nor the loss's "
            "normalizer is per_replica",
        )


def _one_batch_only(experiment: Experiment) -> Iterator[tuple[str, str]]:
    if experiment.data.repeat_first_batch:
        yield (
            "data.repeat_first_batch",
            "every step trains on the first batch, so that the speed of a step can be measured; "
            "nothing but this batch is learnt",
        )
