"""The registry of what is wrong or doubtful about an experiment, and what several rules use.

A rule is a function from a section of an experiment to remarks. It is registered for the class of
the section, with the severity of its remarks and with the occasion at which it is applied.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from stillbox.experiment import schema
from stillbox.experiment.values import Value, sections_of
from stillbox.findings import Finding, Findings, Origins, Severity

Occasion = Literal["reading", "training", "checking"]
"""When a rule is applied: to every experiment, before training, or by `stillbox check` alone."""


class Remark(NamedTuple):
    """What a rule says about a section."""

    path: str
    """Dotted path of the field concerned, relative to the section."""
    problem: str
    """One sentence with the values."""
    fix: str = ""
    """The remedy; errors need one."""
    severity: Severity | None = None
    """None: as serious as the rule says."""


Remarks = Iterator[Remark]
AnyRule = TypeVar("AnyRule", bound=Callable[..., Remarks])


@dataclass(frozen=True)
class Rule:
    """A registered rule."""

    classes: tuple[type, ...]
    function: Callable[[Any], Remarks]
    severity: Severity
    occasion: Occasion

    def apply(self, sections: Sequence[tuple[str, Value]]) -> Findings:
        """Yields what the rule finds in sections with their paths; see `look_at`."""
        for path, section in sections:
            if isinstance(section, self.classes):
                for remark in self.function(section):
                    severity, field = remark.severity or self.severity, join_path(path, remark.path)
                    yield Finding(severity, field, remark.problem, remark.fix)


RULES: list[Rule] = []
"""All rules, in the order of registration, which is the order of findings."""


def rule(
    *classes: type, severity: Severity = "error", on: Occasion = "reading"
) -> Callable[[AnyRule], AnyRule]:
    """Registers a rule about every section of an experiment that is of one of the classes.

    Args:
        classes: of the sections; `Scoring` and `Written` are views of the whole experiment.
        severity: of what the rule finds.
        on: when it is applied. What breaks a rule on training can still predict.
    """

    def register(function: AnyRule) -> AnyRule:
        RULES.append(Rule(classes, function, severity, on))
        return function

    return register


def apply_rules(
    experiment: schema.Experiment, occasion: Occasion = "reading", origins: Origins | None = None
) -> Findings:
    """Yields what the rules of an occasion find, in order of registration."""
    sections = look_at(experiment, origins or {})
    for each in RULES:
        if each.occasion == occasion:
            yield from each.apply(sections)


class Scoring(NamedTuple):
    """The losses of the classes and the postprocessing of a model with one stage or two."""

    path: str
    """The section that has `postprocessing`."""
    postprocessing: schema.Postprocessing
    loss_path: str
    loss: schema.DetectorLoss | schema.RoIHead
    """The section that has losses of classes and boxes, their weights and the miner."""


class Written(NamedTuple):
    """An experiment with the fields that its config sets, be it to their defaults."""

    experiment: schema.Experiment
    fields: Origins


def look_at(experiment: schema.Experiment, origins: Origins) -> list[tuple[str, Value]]:
    """Returns all sections of an experiment with their paths, and the views, which have none."""
    views = (_scoring(experiment.model), Written(experiment, origins))
    return [*sections_of(experiment), *(("", view) for view in views)]


def _scoring(model: schema.Model) -> Scoring | None:
    """Returns the losses and postprocessing of the stage that classifies."""
    if isinstance(model, schema.OneStage):
        return Scoring("model", model.postprocessing, "model.loss", model.loss)
    if isinstance(model, schema.FasterRcnn) and model.boxes is not None:
        return Scoring("model.boxes", model.boxes.postprocessing, "model.boxes", model.boxes)
    return None


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


def fit_stride(model: schema.OneStage | schema.FasterRcnn, stride: int, who: str) -> Remarks:
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
            problem = f"an image side of {side} pixels does not fit {who} of stride {stride}"
            yield Remark(path, problem, fix)


def strong_augmentations(
    experiment: schema.Experiment,
) -> Iterator[tuple[str, schema.StrongAugmentation]]:
    """Yields the augmentations that may be left out at the end of training, with their paths."""
    for path, section in sections_of(experiment.train.augmentations, "train.augmentations"):
        if isinstance(section, schema.StrongAugmentation):
            yield path, section
