"""The types of advice and of the checks that give it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from stillbox.checking.data_findings import Severity
from stillbox.experiment.schema import Experiment, OneStage


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


Origins = Mapping[str, str]
"""Dotted path of each field that is set -> its place in a file or option."""
Findings = Iterator[Advice]
Check = Callable[[Experiment, Origins], Findings]
OneStageCheck = Callable[[Experiment, OneStage, Origins], Findings]
"""A check of an experiment with this model."""
