"""The types of advice and of the checks that give it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from stillbox.checking.data_findings import Severity
from stillbox.experiment.schema import BoxStage, Experiment, Loss, Postprocessing


@dataclass(frozen=True)
class Advice:
    """A problem of an experiment, or a fact about it."""

    severity: Severity
    """`error`: training would refuse to start."""
    path: str
    """Dotted path of the field; its origin is printed."""
    what: str
    """The problem, with the values."""
    fix: str = ""


class Scoring(NamedTuple):
    """What classes are learned by and detections are made by, in a model of either kind."""

    path: str
    """The section that has `postprocessing`."""
    postprocessing: Postprocessing
    loss_path: str
    loss: Loss | BoxStage
    """The section that has losses of classes and boxes, their weights and the miner."""


Origins = Mapping[str, str]
"""Dotted path of each field that is set -> its place in a file or option."""
Findings = Iterator[Advice]
Check = Callable[[Experiment, Origins], Findings]
PartCheck = Callable[[Experiment, Any, Origins], Findings]
"""A check of an experiment with a part of its model."""
PartOf = Callable[[Experiment], Any]
"""From an experiment to the part that checks look at; None: it has no such part."""
