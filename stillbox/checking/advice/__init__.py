"""Advice about experiments that no rule forbids; one small function for each check.

Rules (`experiment/rules`) refuse contradictions. Advice is about experiments that train badly,
about loss of data, and about fields without effect. A new check is a function under `@check`.
"""

from stillbox.checking.advice import files, models, training
from stillbox.checking.advice.registry import CHECKS
from stillbox.experiment.schema import Experiment
from stillbox.findings import Findings, Origins

__all__ = ["advise", "files", "models", "training"]


def advise(experiment: Experiment, origins: Origins) -> Findings:
    """Yields the advice of all checks."""
    for check in CHECKS:
        yield from check(experiment, origins)
