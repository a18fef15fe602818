"""What must hold between the fields of an experiment, and what a person should be told.

A rule is a small function from an experiment to what it breaks; the files of this folder
hold them by subject. Types and spelling are not rules: `values.py` sees to those.
"""

from collections.abc import Mapping

from stillbox.errors import UserError
from stillbox.experiment.rules.anchors import ANCHOR_RULES
from stillbox.experiment.rules.augmentations import AUGMENTATION_RULES
from stillbox.experiment.rules.broken import Broken, OneStageRule, Rule
from stillbox.experiment.rules.devices import DEVICE_RULES
from stillbox.experiment.rules.evaluation import EVALUATION_RULES
from stillbox.experiment.rules.limits import check_limits
from stillbox.experiment.rules.model import MODEL_RULES
from stillbox.experiment.rules.necks import NECK_RULES
from stillbox.experiment.rules.postprocessing import POSTPROCESSING_RULES
from stillbox.experiment.rules.resizers import RESIZER_RULES
from stillbox.experiment.rules.spinenet import SPINENET_RULES
from stillbox.experiment.rules.targets import TARGET_RULES
from stillbox.experiment.rules.trainable import TRAINABLE_RULES
from stillbox.experiment.rules.training import TRAINING_RULES
from stillbox.experiment.rules.warnings import seldom_meant, warnings_about
from stillbox.experiment.schema import Experiment, OneStage

_MODEL_RULES: tuple[OneStageRule, ...] = (
    *MODEL_RULES,
    *SPINENET_RULES,
    *NECK_RULES,
    *ANCHOR_RULES,
    *TARGET_RULES,
    *POSTPROCESSING_RULES,
)
_OTHER_RULES: tuple[Rule, ...] = (
    *TRAINING_RULES,
    *EVALUATION_RULES,
    *DEVICE_RULES,
    *AUGMENTATION_RULES,
)

# As many as fit on a screen.
_OTHERS_SHOWN = 4


def check(experiment: Experiment, origins: Mapping[str, str]) -> None:
    """Refuses an experiment that contradicts itself.

    Raises:
        UserError: names every broken rule with the place of the value and the remedy.
    """
    _raise_all(find_broken(experiment), origins)


def check_trainable(experiment: Experiment, origins: Mapping[str, str]) -> None:
    """Refuses an experiment that lacks what training needs: records, a label map.

    Raises:
        UserError: names everything that is missing with the `--set` that gives it.
    """
    _raise_all(find_missing(experiment), origins)


def find_broken(experiment: Experiment) -> list[Broken]:
    """Returns every contradiction in an experiment, for which `check` refuses it."""
    model = experiment.model
    found = [broken for rule in (check_limits, *RESIZER_RULES) for broken in rule(experiment)]
    if isinstance(model, OneStage):
        found += [broken for one_stage in _MODEL_RULES for broken in one_stage(model)]
    return found + [broken for rule in _OTHER_RULES for broken in rule(experiment)]


def find_missing(experiment: Experiment) -> list[Broken]:
    """Returns everything that keeps an experiment from being trained (`check_trainable`)."""
    return [broken for rule in TRAINABLE_RULES for broken in rule(experiment)]


def _raise_all(found: list[Broken], origins: Mapping[str, str]) -> None:
    if not found:
        return
    first, *rest = found
    # The first is the message; the others spare a person one run for each of them.
    others = "".join(_also(broken, origins) for broken in rest[:_OTHERS_SHOWN])
    if len(rest) > _OTHERS_SHOWN:
        others += f"\nand {len(rest) - _OTHERS_SHOWN} more: `stillbox check` lists them all"
    raise UserError(
        first.what, where=origins.get(first.path, first.path), fix=f"{first.fix}{others}"
    )


def _also(broken: Broken, origins: Mapping[str, str]) -> str:
    where = origins.get(broken.path, broken.path)
    return f"\nand {where}: {broken.what}\n  fix: {broken.fix}"


__all__ = [
    "Broken",
    "Rule",
    "check",
    "check_trainable",
    "find_broken",
    "find_missing",
    "seldom_meant",
    "warnings_about",
]
