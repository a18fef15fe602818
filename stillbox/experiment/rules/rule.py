"""The registry of rules, and what several rules use."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from stillbox.experiment import schema
from stillbox.experiment.values import sections_of
from stillbox.findings import Finding

Rule = Callable[[Any], Iterator[Finding]]
"""From a section of an experiment to what is wrong with it; paths are relative to the section."""
AnyRule = TypeVar("AnyRule", bound=Callable[..., Iterator[Finding]])

_RULES: list[tuple[tuple[type, ...], Rule]] = []
_TRAINING_RULES: list[tuple[tuple[type, ...], Rule]] = []


def rule(*classes: type, training: bool = False) -> Callable[[AnyRule], AnyRule]:
    """Registers a rule about every section of an experiment that is of one of the classes.

    Args:
        classes: of the sections.
        training: an experiment that breaks the rule cannot be trained, but can still predict.
    """

    def register(function: AnyRule) -> AnyRule:
        (_TRAINING_RULES if training else _RULES).append((classes, function))
        return function

    return register


def error(path: str, what: str, fix: str) -> Finding:
    """Returns an error; unlike other findings it needs a remedy."""
    return Finding("error", path, what, fix)


def apply_rules(experiment: schema.Experiment, *, training: bool = False) -> Iterator[Finding]:
    """Yields what the rules find, those of training or the others, in order of registration."""
    sections = list(sections_of(experiment))
    for classes, function in _TRAINING_RULES if training else _RULES:
        for path, section in sections:
            if isinstance(section, classes):
                for finding in function(section):
                    yield dataclasses.replace(finding, path=join_path(path, finding.path))


def join_path(*parts: str) -> str:
    """Returns the dotted path of a field of a section; the path of either may be empty."""
    return ".".join(filter(None, parts))


def input_sides(model: schema.Model) -> Iterator[tuple[str, int]]:
    """Yields the sides of the network input with the fields of the model that set them."""
    resizer, path = model.resizer, "resizer"
    height, width = resizer.input_size
    if isinstance(resizer, schema.FixedShapeResizer | schema.ScaleJitterResizer):
        yield from ((f"{path}.height", height), (f"{path}.width", width))
    elif isinstance(resizer, schema.CanvasResizer):
        yield from ((f"{path}.canvas", side) for side in dict.fromkeys((height, width)))
    else:
        yield f"{path}.max_dimension", height


def padding_multiple(model: schema.OneStage | schema.FasterRcnn) -> int:
    """Returns what sides of the network input are padded to multiples of."""
    return model.pad_to_multiple if isinstance(model, schema.OneStage) else 1


def fit_stride(
    model: schema.OneStage | schema.FasterRcnn, stride: int, who: str
) -> Iterator[Finding]:
    """Yields the sides of the network input that do not fit the stride that `who` requires."""
    multiple = padding_multiple(model)
    if multiple < 1:
        return
    for path, side in input_sides(model):
        if side >= 1 and (side + -side % multiple) % stride:
            below = max(side // stride, 1) * stride
            fix = f"the nearest sides that do are {below} and {below + stride}"
            if isinstance(model, schema.OneStage):
                fix += f"; or set model.pad_to_multiple to {stride}"
            what = f"an image side of {side} pixels does not fit {who} of stride {stride}"
            yield error(path, what, fix)
