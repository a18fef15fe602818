"""Rules about devices, as far as they hold on all machines."""

from collections.abc import Iterator

from stillbox.experiment.replicas import batch_norms
from stillbox.experiment.rules.rule import Broken, input_sides, rule
from stillbox.experiment.schema import Experiment, FasterRcnn


@rule(Experiment)
def images_can_be_cut(experiment: Experiment) -> Iterator[Broken]:
    """The devices that share an image get equally many rows of it."""
    parts = experiment.devices.spatial_partitions
    if parts > 1 and isinstance(experiment.model, FasterRcnn):
        yield Broken(
            "devices.spatial_partitions",
            f"{parts} devices cannot share an image: crops are taken from whole feature maps",
            "--set devices.spatial_partitions=1",
        )
        return
    path, height = next(input_sides(experiment.model))
    # Numbers below 1 are reported as out of range.
    if parts >= 1 and height >= 1 and height % parts:
        yield Broken(
            "devices.spatial_partitions",
            f"an image of {height} rows (model.{path}) cannot be cut into {parts} equal parts",
            f"set model.{path} to {_multiples_near(height, parts)}, "
            f"or spatial_partitions to {_divisor_below(height, parts)}",
        )


@rule(Experiment)
def replicas_divide_the_batch(experiment: Experiment) -> Iterator[Broken]:
    """Replicas get equally many images."""
    replicas, batch = experiment.devices.replicas, experiment.train.batch_size
    if replicas >= 1 and batch >= 1 and batch % replicas:
        yield Broken(
            "devices.replicas",
            f"a batch of {batch} (train.batch_size) cannot be divided among {replicas} replicas",
            f"set train.batch_size to {_multiples_near(batch, replicas)}, "
            f"or replicas to {_divisor_below(batch, replicas)}",
        )


@rule(Experiment)
def groups_divide_the_batch(experiment: Experiment) -> Iterator[Broken]:
    """The size of groups that share statistics is given if they are used, and divides the batch."""
    batch = experiment.train.batch_size
    for path, norm in batch_norms(experiment.model):
        size, where = norm.group_size, f"{path}.group_size"
        if norm.statistics != "groups" and size > 0:
            yield Broken(
                where,
                f"group_size {size} has no effect while statistics is {norm.statistics}",
                f"--set {path}.statistics=groups, or --set {where}=0",
            )
        elif norm.statistics == "groups" and size == 0:
            yield Broken(where, "statistics of groups of 0 images", f"for example {where}=8")
        elif norm.statistics == "groups" and size > 0 and batch > 0 and batch % size:
            yield Broken(
                where,
                f"a batch of {batch} (train.batch_size) cannot be divided into groups of {size}",
                f"use {_divisor_below(batch, size)}",
            )


def _multiples_near(number: int, divisor: int) -> str:
    lower = number // divisor * divisor
    return f"{lower} or {lower + divisor}" if lower else f"{divisor}"


def _divisor_below(number: int, most: int) -> int:
    return next(part for part in range(min(most, number), 0, -1) if number % part == 0)
