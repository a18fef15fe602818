"""Paths into a model directory, which it keeps when it is moved, copied or mounted elsewhere.

An experiment that is stored with a model spells them `{model_directory}/data/train.record`.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from stillbox.errors import UserError
from stillbox.experiment.schema import Experiment
from stillbox.experiment.schema.ranges import INPUT, Outside
from stillbox.experiment.values import Value, field_marks

CHECKPOINTS = "checkpoints"
"""The folder of a model directory that has a folder for each step."""
_OWN = "{model_directory}/"


def store_paths(experiment: Experiment, directory: Path) -> Experiment:
    """Returns the experiment as it is stored: with paths into the directory relative to it."""
    return _with_paths(experiment, partial(_stored, directory.absolute()))


def place_paths(experiment: Experiment, folder: Path) -> Experiment:
    """Returns a stored experiment with the paths that it has from the current folder.

    Args:
        experiment: as it was stored.
        folder: that it was read from: a model directory, or the folder of a checkpoint in one.

    Raises:
        UserError: a path leads out of the directory.
    """
    directory = folder.parent.parent if folder.parent.name == CHECKPOINTS else folder
    return _with_paths(experiment, partial(_placed, directory))


def without_own_paths(experiment: Experiment) -> Experiment:
    """Returns a stored experiment without its paths into the model directory."""
    return _with_paths(experiment, lambda path: "" if path.startswith(_OWN) else path)


def _stored(directory: Path, path: str) -> str:
    absolute = Path(path).absolute()
    if not path or not absolute.is_relative_to(directory):
        return path
    return _OWN + absolute.relative_to(directory).as_posix()


def _placed(directory: Path, path: str) -> str:
    if not path.startswith(_OWN):
        return path
    inner = PurePosixPath(path.removeprefix(_OWN))
    if ".." in inner.parts or inner.is_absolute():
        raise UserError(
            f"{path} leads out of the model directory",
            where=str(directory),
            fix="write the path as it is from the current folder",
        )
    return str(directory / inner)


def _with_paths(section: Value, change: Callable[[str], str]) -> Value:
    """Changes the values of all fields that are marked as an `InputPath`."""
    marks = field_marks(section.__class__, Outside)
    changed = {}
    for field in fields(section):
        value = getattr(section, field.name)
        if marks.get(field.name) is INPUT:
            several = isinstance(value, tuple)
            new = tuple(filter(None, map(change, value if several else (value,))))
            changed[field.name] = new if several else "".join(new)
        elif is_dataclass(value):
            changed[field.name] = _with_paths(value, change)
    return replace(section, **changed)
