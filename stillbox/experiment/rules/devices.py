"""Rules about how a program is spread over devices, as far as they hold on all machines."""

from collections.abc import Iterator

from stillbox.experiment.replicas import batch_norms
from stillbox.experiment.rules.broken import Broken, Rule
from stillbox.experiment.rules.input_sides import input_sides
from stillbox.experiment.schema import Experiment


def images_can_be_cut(experiment: Experiment) -> Iterator[Broken]:
    """Each of the devices that share an image gets as many rows of it as the others."""
    parts = experiment.devices.spatial_partitions
    path, height = next(input_sides(experiment.model))
    # Numbers below 1 have been reported by the limits.
    if parts < 1 or height < 1 or height % parts == 0:
        return
    yield Broken(
        "devices.spatial_partitions",
        f"an image of {height} rows ({path}) cannot be cut into {parts} equal parts",
        f"set {path} to {_multiples_near(height, parts)}, "
        f"or spatial_partitions to {_divisor_below(height, parts)}",
    )


def replicas_divide_the_batch(experiment: Experiment) -> Iterator[Broken]:
    """Each replica sees as many images as the others."""
    replicas, batch = experiment.devices.replicas, experiment.train.batch_size
    if replicas < 1 or batch < 1 or batch % replicas == 0:
        return
    yield Broken(
        "devices.replicas",
        f"a batch of {batch} (train.batch_size) cannot be divided among {replicas} replicas",
        f"set train.batch_size to {_multiples_near(batch, replicas)}, "
        f"or replicas to {_divisor_below(batch, replicas)}",
    )


def groups_divide_the_batch(experiment: Experiment) -> Iterator[Broken]:
    """Groups of images that share statistics are given where they are asked for, and are alike."""
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


DEVICE_RULES: tuple[Rule, ...] = (
    images_can_be_cut,
    replicas_divide_the_batch,
    groups_divide_the_batch,
)
"""All of them."""
