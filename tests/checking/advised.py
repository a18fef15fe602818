"""A sound experiment, and the advice on it when it changes."""

from functools import cache

from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules.rule import RULES, look_at
from stillbox.experiment.schema import Model
from stillbox.experiment.updating import apply_changes
from tests.small import SMALL

RECIPE = "ssd_mobilenet_v1_fpn_640x640"
SMALL_SOUND = tuple(override for override in SMALL if not override.startswith("train."))
"""Makes the detector of `advice_of` small, for checks that build it."""


_resolve = cache(resolve)


class OtherModel(Model):
    """A model of another family than one-stage models; it is not registered."""


OtherModel.kind = "other"


def findings_of(function, experiment, origins=None):
    """Returns what the rule of a function finds."""
    (rule,) = (rule for rule in RULES if rule.function is function)
    return list(rule.apply(look_at(experiment, origins or {})))


def advice_of(function, overrides):
    """Returns what the rule of a function finds in the recipe with these overrides."""
    small = "model.resizer.height=64" in overrides
    resolved = _resolve("ssd_mobilenet_v1_300x300" if small else RECIPE)
    origins = {path: where for path, where in resolved.origins.items() if "fine_tune" not in path}
    experiment = apply_changes(resolved.experiment, changes_of(overrides), origins)
    return findings_of(function, experiment, origins)
