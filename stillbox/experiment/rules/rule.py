"""Rules: what they return, and their registry."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from stillbox.experiment.schema import (
    CanvasResizer,
    Experiment,
    FasterRcnn,
    FixedShapeResizer,
    Model,
    OneStage,
    ScaleJitterResizer,
)
from stillbox.experiment.values import sections_of


@dataclass(frozen=True)
class Broken:
    """A rule that an experiment breaks."""

    path: str
    """Dotted path of the field at fault. A rule gives it relative to the section that it checks."""
    what: str
    """What is wrong, with the values."""
    fix: str
    """How to mend it."""


Check = Callable[[Any], Iterator[Broken]]
"""From a section of an experiment to the rules that it breaks."""
AnyCheck = TypeVar("AnyCheck", bound=Callable[..., Iterator[Broken]])

_RULES: list[tuple[tuple[type, ...], Check]] = []


def rule(*classes: type) -> Callable[[AnyCheck], AnyCheck]:
    """Registers a rule about every section of an experiment that is of one of the classes."""

    def register(check: AnyCheck) -> AnyCheck:
        _RULES.append((classes, check))
        return check

    return register


def find(experiment: Experiment) -> Iterator[Broken]:
    """Yields every registered rule that an experiment breaks, in the order of registration."""
    sections = list(sections_of(experiment))
    for classes, check in _RULES:
        for path, section in sections:
            if isinstance(section, classes):
                for broken in check(section):
                    place = ".".join(filter(None, (path, broken.path)))
                    yield dataclasses.replace(broken, path=place)


def input_sides(model: Model) -> Iterator[tuple[str, int]]:
    """Yields the sides of the network input with the fields of the model that set them."""
    resizer, path = model.resizer, "resizer"
    height, width = resizer.input_size
    if isinstance(resizer, FixedShapeResizer | ScaleJitterResizer):
        yield from ((f"{path}.height", height), (f"{path}.width", width))
    elif isinstance(resizer, CanvasResizer):
        yield from ((f"{path}.canvas", side) for side in dict.fromkeys((height, width)))
    else:
        yield f"{path}.max_dimension", height


def padding_multiple(model: OneStage | FasterRcnn) -> int:
    """Returns what sides of the network input are padded to multiples of."""
    return model.pad_to_multiple if isinstance(model, OneStage) else 1


def fit_stride(model: OneStage | FasterRcnn, stride: int, who: str) -> Iterator[Broken]:
    """Yields the sides of the network input that are no multiples of a stride.

    Args:
        model: the model.
        stride: of its coarsest map, in pixels.
        who: what requires it, for the message.
    """
    multiple = padding_multiple(model)
    if multiple < 1:
        return
    for path, side in input_sides(model):
        if side >= 1 and (side + -side % multiple) % stride:
            below = max(side // stride, 1) * stride
            fix = f"the nearest sides that do are {below} and {below + stride}"
            if isinstance(model, OneStage):
                fix += f"; or set model.pad_to_multiple to {stride}"
            what = f"an image side of {side} pixels does not fit {who} of stride {stride}"
            yield Broken(path, what, fix)
