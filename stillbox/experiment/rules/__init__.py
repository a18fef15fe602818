"""What must hold between the fields of an experiment, and what is allowed but seldom meant.

A rule is a function from a section of an experiment to the rules that it breaks, registered for
the class of the section. Types and spelling are not rules: `updating.py` checks those.
"""

from collections.abc import Mapping

from stillbox.errors import UserError
from stillbox.experiment.rules import boxes, model, training  # noqa: F401 (modules register their rules)
from stillbox.experiment.rules.rule import Excess, Violation, check_limits, find
from stillbox.experiment.rules.warnings import (
    TRAINABLE_RULES,
    frozen_fresh_statistics,
    suspicious_settings,
    warnings_about,
)
from stillbox.experiment.schema import Experiment

__all__ = [
    "Violation",
    "check",
    "check_trainable",
    "find_broken",
    "find_missing",
    "frozen_fresh_statistics",
    "suspicious_settings",
    "warnings_about",
]

# As many as fit on a screen.
_OTHERS_SHOWN = 4


def check(experiment: Experiment, origins: Mapping[str, str]) -> None:
    """Refuses an experiment that contradicts itself.

    Raises:
        UserError: names every broken rule with the position of the value and the remedy.
    """
    _raise_all(find_broken(experiment), origins)


def check_trainable(experiment: Experiment, origins: Mapping[str, str]) -> None:
    """Refuses an experiment that lacks what training needs: records, a label map.

    Raises:
        UserError: names everything that is missing with the `--set` that gives it.
    """
    _raise_all(find_missing(experiment), origins)


def find_broken(experiment: Experiment) -> list[Violation]:
    """Returns every contradiction in an experiment, for which `check` refuses it."""
    beyond = list(check_limits(experiment))
    if any(isinstance(broken, Excess) for broken in beyond):
        return beyond
    return [*beyond, *find(experiment)]


def find_missing(experiment: Experiment) -> list[Violation]:
    """Returns everything that keeps an experiment from being trained (`check_trainable`)."""
    return [broken for rule in TRAINABLE_RULES for broken in rule(experiment)]


def _raise_all(found: list[Violation], origins: Mapping[str, str]) -> None:
    if not found:
        return
    first, *rest = found
    # The first is the message; showing others saves a run for each of them.
    others = "".join(
        f"\nand {origins.get(broken.path, broken.path)}: {broken.what}\n  fix: {broken.fix}"
        for broken in rest[:_OTHERS_SHOWN]
    )
    if len(rest) > _OTHERS_SHOWN:
        others += f"\nand {len(rest) - _OTHERS_SHOWN} more: `stillbox check` lists them all"
    raise UserError(
        first.what, where=origins.get(first.path, first.path), fix=f"{first.fix}{others}"
    )
