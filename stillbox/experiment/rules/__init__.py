"""What must hold between the fields of an experiment, and what is allowed but probably a mistake.

Everything is a `rule` with a severity. The rules of this folder look at the experiment alone; the
rules of `checking/advice`, which `stillbox check` applies, may open files and build the model.
Types and spelling are not rules: `updating.py` checks those.
"""

from collections.abc import Sequence

from stillbox.errors import UserError
from stillbox.experiment.rules import (  # noqa: F401 (modules register their rules)
    boxes,
    dense_heads,
    missing,
    model,
    pixels,
    training,
    warnings,
)
from stillbox.experiment.rules.limits import Excess, check_limits
from stillbox.experiment.rules.rule import apply_rules
from stillbox.experiment.rules.warnings import frozen_fresh_statistics
from stillbox.experiment.schema import Experiment
from stillbox.findings import Finding, Origins

__all__ = [
    "check",
    "check_trainable",
    "find",
    "find_errors",
    "find_missing",
    "frozen_fresh_statistics",
    "warnings_about",
]

# As many as fit on a screen.
_OTHERS_SHOWN = 4


def check(experiment: Experiment, origins: Origins) -> None:
    """Refuses an experiment that contradicts itself.

    Raises:
        UserError: names every broken rule with the position of the value and the remedy.
    """
    _raise_all(find_errors(experiment), origins)


def check_trainable(experiment: Experiment, origins: Origins) -> None:
    """Refuses an experiment that lacks what training needs: records, a label map.

    Raises:
        UserError: names everything that is missing with the `--set` that gives it.
    """
    _raise_all(find_missing(experiment), origins)


def warnings_about(experiment: Experiment, origins: Origins) -> tuple[str, ...]:
    """Returns a sentence for everything that is probably a mistake, each with its position."""
    findings = find(experiment)
    return tuple(each.describe(origins) for each in findings if each.severity == "warning")


def find(experiment: Experiment) -> list[Finding]:
    """Returns all contradictions in an experiment, and as warnings what is probably a mistake.

    Where a value is too large to count with, only limits of single fields are checked.
    """
    limits = list(check_limits(experiment))
    if any(isinstance(finding, Excess) for finding in limits):
        return limits
    return [*limits, *apply_rules(experiment)]


def find_errors(experiment: Experiment) -> list[Finding]:
    """Returns every contradiction in an experiment, for which `check` refuses it."""
    return [finding for finding in find(experiment) if finding.severity == "error"]


def find_missing(experiment: Experiment) -> list[Finding]:
    """Returns everything that keeps an experiment from being trained (`check_trainable`)."""
    return list(apply_rules(experiment, "training"))


def _raise_all(errors: Sequence[Finding], origins: Origins) -> None:
    if not errors:
        return
    first, *rest = errors
    # The first is the message; showing others saves a run for each of them.
    others = "".join(f"\nand {finding.describe(origins)}" for finding in rest[:_OTHERS_SHOWN])
    if len(rest) > _OTHERS_SHOWN:
        others += f"\nand {len(rest) - _OTHERS_SHOWN} more: `stillbox check` lists them all"
    raise UserError(first.what, where=first.where(origins), fix=f"{first.fix}{others}")
