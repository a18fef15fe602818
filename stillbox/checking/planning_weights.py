"""The weights that a planned run starts from, and the recipes that take them."""

from collections.abc import Callable
from pathlib import Path

from stillbox.checking.candidates import SMALL
from stillbox.checkpoints.pretrained import find_weights
from stillbox.errors import UserError
from stillbox.experiment.known_weights import KnownWeights, known_weights
from stillbox.experiment.resolve import read_config
from stillbox.experiment.rules.missing import CHECKPOINT
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import Changes

# Measured: docs/training.md.
_GAIN = "after 520 steps on BCCD, ImageNet weights had AP .544, random ones .392"


def recipe_for_weights(chosen: str, overrides: Changes) -> str:
    """Returns a recipe that takes the known weights of the overrides, the chosen one if it does.

    Raises:
        UserError: no recipe takes them.
    """
    row = weights_of(overrides)
    if row is None or chosen in row.recipes:
        return chosen
    if row.fits(read_config(chosen).experiment.model):
        return chosen
    if not row.recipes:
        problem = f"no recipe takes the weights {row.name}"
        fix = "give the pipeline.config of their archive as the config"
        raise UserError(problem, where=CHECKPOINT, fix=fix)
    return row.recipes[0]


def weights_of(overrides: Changes) -> KnownWeights | None:
    """Returns the known weights that overrides name."""
    return known_weights().get(str(overrides.get(CHECKPOINT)))


def has_weights(recipe: str) -> bool:
    """Whether weights that the recipe starts from are installed or downloaded."""
    rows = [row for row in known_weights().values() if recipe in row.recipes]
    return any(find_weights(row.name) is not None for row in rows)


def given_weights(checkpoint: str, say: Callable[[str], None]) -> Changes:
    """Returns the changes that belong to the weights that were asked for."""
    say(f"weights to start from: {checkpoint or 'random ones'}, as given")
    row = known_weights().get(checkpoint)
    return row.changes() if row else {CHECKPOINT: checkpoint}


def first_weights(experiment: Experiment, say: Callable[[str], None]) -> Changes:
    """Returns the changes for weights on this machine; if there are none, says which to get."""
    checkpoint = experiment.train.fine_tune.checkpoint
    if checkpoint and Path(checkpoint).exists():
        say(f"weights to start from: {checkpoint}")
        return {}
    rows = known_weights().values()
    fitting = [row for row in rows if row.fits(experiment.model)]
    fitting.sort(key=lambda row: experiment.name not in row.recipes)
    for row in fitting:
        if find_weights(row.name) is not None:
            say(f"weights to start from: {row.name}, {row.about}")
            return row.changes()
    remedy = f"; `stillbox weights get {fitting[0].name}` gets some" if fitting else ""
    if experiment.name == SMALL:
        remedy += f" ({_GAIN})"
    say(
        "warning: random weights to start from, which need more images and more steps: none that "
        f"fit are on this machine{remedy}"
    )
    return {CHECKPOINT: ""}
