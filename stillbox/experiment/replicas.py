"""The number of images of a replica, which settings per replica refer to."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from stillbox.experiment.schema import BatchNorm, Model
from stillbox.experiment.values import sections_of

Part = TypeVar("Part")
AnyModel = TypeVar("AnyModel", bound=Model)


def replicas_as_groups(model: AnyModel, batch_size: int, replicas: int) -> AnyModel:
    """Returns a model with statistics of `groups` in place of `per_replica`.

    Layers are then independent of devices: a replica is `batch_size / replicas` images that
    follow each other. A single replica is the whole batch, which is `global`.

    Args:
        model: the detector's description.
        batch_size: images of a training step, over all devices.
        replicas: equal parts of it.
    """

    def group(norm: BatchNorm) -> BatchNorm:
        if norm.statistics != "per_replica":
            return norm
        if replicas == 1:
            return dataclasses.replace(norm, statistics="global")
        size = batch_size // replicas
        return dataclasses.replace(norm, statistics="groups", group_size=size)

    return _replace_norms(model, group)


def groups_of_crops(part: Part, crops: int) -> Part:
    """Returns a part whose input holds so many crops for each image, the groups enlarged alike."""

    def enlarge(norm: BatchNorm) -> BatchNorm:
        return dataclasses.replace(norm, group_size=norm.group_size * crops)

    return _replace_norms(part, enlarge)


def depends_on_replicas(model: Model) -> bool:
    """Returns whether a model has settings per replica."""
    norms = any(norm.statistics == "per_replica" for _, norm in batch_norms(model))
    return norms or model.normalizes_per_replica


def batch_norms(model: Model) -> Iterator[tuple[str, BatchNorm]]:
    """Yields the batch norms of a model, each with its dotted path."""
    for path, section in sections_of(model, "model"):
        if isinstance(section, BatchNorm):
            yield path, section


def _replace_norms(part: Part, change: Callable[[BatchNorm], BatchNorm]) -> Part:
    if isinstance(part, tuple):
        return cast(Part, tuple(_replace_norms(item, change) for item in part))
    if not dataclasses.is_dataclass(part):
        return part
    if isinstance(part, BatchNorm):
        return cast(Part, change(part))
    inside = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    changes = {
        name: changed
        for name, value in inside.items()
        if (changed := _replace_norms(value, change)) is not value and changed != value
    }
    return dataclasses.replace(part, **changes) if changes else part  # type: ignore[type-var]
