"""The number of images of a replica, which settings per replica refer to."""

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar, cast

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
    groups = {"statistics": "groups", "group_size": batch_size // replicas}
    return _replace_norms(model, groups if replicas > 1 else {"statistics": "global"})


def depends_on_replicas(model: Model) -> bool:
    """Returns whether a model has settings per replica."""
    norms = any(norm.statistics == "per_replica" for _, norm in batch_norms(model))
    return norms or model.normalizes_per_replica


def batch_norms(model: Model) -> Iterator[tuple[str, BatchNorm]]:
    """Yields the batch norms of a model, each with its dotted path."""
    for path, section in sections_of(model, "model"):
        if isinstance(section, BatchNorm):
            yield path, section


def _replace_norms(part: Part, meaning: dict[str, Any]) -> Part:
    if isinstance(part, tuple):
        return cast(Part, tuple(_replace_norms(item, meaning) for item in part))
    if not dataclasses.is_dataclass(part):
        return part
    if isinstance(part, BatchNorm):
        replica = part.statistics == "per_replica"
        return cast(Part, dataclasses.replace(part, **meaning)) if replica else part
    inside = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    changes = {
        name: changed
        for name, value in inside.items()
        if (changed := _replace_norms(value, meaning)) is not value and changed != value
    }
    return dataclasses.replace(part, **changes) if changes else part  # type: ignore[type-var]
