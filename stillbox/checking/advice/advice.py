"""The type of a piece of advice and of what gives it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps

from stillbox.checking.data_findings import Severity
from stillbox.experiment.schema import Experiment, OneStage


@dataclass(frozen=True)
class Advice:
    """One thing that a person should know about an experiment."""

    severity: Severity
    """`error`: training would refuse to start."""
    path: str
    """Dotted path of the field to blame; its origin is what a person gets to see."""
    what: str
    """What is the matter, with the values."""
    fix: str = ""
    """How to mend it, where there is something to mend."""


Counsel = Callable[[Experiment, Mapping[str, str]], Iterator[Advice]]
"""From an experiment and its origins (dotted path -> where, for what was set) to advice."""


def of_one_stage(
    counsel: Callable[[Experiment, OneStage, Mapping[str, str]], Iterator[Advice]],
) -> Counsel:
    """Returns advice about one-stage models as advice about any experiment."""

    @wraps(counsel)
    def advise(experiment: Experiment, origins: Mapping[str, str]) -> Iterator[Advice]:
        if isinstance(experiment.model, OneStage):
            yield from counsel(experiment, experiment.model, origins)

    return advise
