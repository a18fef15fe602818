"""The type of a rule and of what it finds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stillbox.experiment.schema import Experiment, OneStage


@dataclass(frozen=True)
class Broken:
    """One rule that an experiment breaks."""

    path: str
    """Dotted path of the field to blame; its origin is what a person gets to see."""
    what: str
    """What is wrong, with the values."""
    fix: str
    """How to mend it."""


Rule = Callable[[Experiment], Iterator[Broken]]

OneStageRule = Callable[[OneStage], Iterator[Broken]]
