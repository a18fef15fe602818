"""The choice of the parameters that training changes."""

from collections.abc import Iterable, Mapping

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.references import Setting
from stillbox.textformat.name_patterns import found_in


def select_trainable(
    paths: Iterable[str], reference_names: Mapping[str, str], train: schema.Training
) -> frozenset[str]:
    """Returns the paths of the parameters that training may change.

    A pattern is searched for in our path and in the name that the parameter has in the original's
    checkpoints, because `freeze_variables` in a `pipeline.config` refers to the latter.

    Raises:
        UserError: a pattern matches nothing, or nothing is left to train.
    """
    paths = frozenset(paths)
    trainable = paths
    if train.trainable:
        trainable = _matching(paths, reference_names, train.trainable, "train.trainable")
    if train.freeze:
        trainable -= _matching(paths, reference_names, train.freeze, "train.freeze")
    if not trainable:
        problem = "no parameter is left to train"
        fix = f"freeze fewer: for example {Setting('train.freeze', ['^backbone'])}"
        raise UserError(problem, where="train.freeze, train.trainable", fix=fix)
    return trainable


def _matching(
    paths: frozenset[str], names: Mapping[str, str], patterns: Iterable[str], where: str
) -> frozenset[str]:
    matching: frozenset[str] = frozenset()
    named = {path: names.get(path, "") for path in paths}
    for pattern, matches in found_in(patterns, named, where):
        if not matches:
            fix = f"paths look like {', '.join(sorted(paths)[:3])}"
            raise UserError(f"the pattern {pattern!r} matches no parameter", where=where, fix=fix)
        matching |= matches
    return matching
