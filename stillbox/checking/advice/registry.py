"""Registers checks, and finds the part of an experiment that a check looks at."""

from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, TypeVar

from stillbox.experiment.schema import (
    DetectorLoss,
    Experiment,
    FasterRcnn,
    OneStage,
    Postprocessing,
    RoIHead,
)
from stillbox.findings import Findings, Origins

Check = Callable[[Experiment, Origins], Findings]
Part = TypeVar("Part")
CHECKS: list[Check] = []
"""All registered checks, in the order of registration."""


def check(
    find: Callable[[Experiment], Part | None],
) -> Callable[[Callable[[Part, Origins], Findings]], Check]:
    """Registers a check of the part that `find` returns; without that part it finds nothing."""

    def register(function: Callable[[Part, Origins], Findings]) -> Check:
        @wraps(function)
        def check_experiment(experiment: Experiment, origins: Origins) -> Findings:
            part = find(experiment)
            if part is not None:
                yield from function(part, origins)

        CHECKS.append(check_experiment)
        return check_experiment

    return register


class Scoring(NamedTuple):
    """The losses of the classes and the postprocessing of a model of either kind."""

    path: str
    """The section that has `postprocessing`."""
    postprocessing: Postprocessing
    loss_path: str
    loss: DetectorLoss | RoIHead
    """The section that has losses of classes and boxes, their weights and the miner."""


def whole(experiment: Experiment) -> Experiment:
    """Returns the experiment itself."""
    return experiment


def one_stage(experiment: Experiment) -> OneStage | None:
    """Returns the model if it has one stage."""
    return experiment.model if isinstance(experiment.model, OneStage) else None


def two_stage(experiment: Experiment) -> FasterRcnn | None:
    """Returns the model if it is a Faster R-CNN, with or without its second stage."""
    return experiment.model if isinstance(experiment.model, FasterRcnn) else None


def scoring(experiment: Experiment) -> Scoring | None:
    """Returns the losses and postprocessing of the stage that classifies."""
    model = experiment.model
    if isinstance(model, OneStage):
        return Scoring("model", model.postprocessing, "model.loss", model.loss)
    if isinstance(model, FasterRcnn) and model.boxes is not None:
        return Scoring("model.boxes", model.boxes.postprocessing, "model.boxes", model.boxes)
    return None
