"""Experiments as YAML: the output of `stillbox config`, stored in model directories.

A model directory keeps the paths that lead into it when it is moved, copied or mounted elsewhere:
an experiment that is stored there spells them `{model_directory}/data/train.record`.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

import yaml

from stillbox.errors import UserError, nearest
from stillbox.experiment.imports import imports_of
from stillbox.experiment.reading import Reading
from stillbox.experiment.recipes import recipe_path
from stillbox.experiment.schema import Experiment
from stillbox.experiment.schema.ranges import INPUT, Outside
from stillbox.experiment.updating import UnknownKindError, update
from stillbox.experiment.values import Plain, Value, field_marks, section_to_plain
from stillbox.object_storage import note_stored_buckets
from stillbox.references import Parameter
from stillbox.textformat.yaml_tree import Node, compose

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")


def from_stored(
    text: str, where: str, say: Callable[[str], None] = lambda line: None
) -> Experiment:
    """Returns the experiment that is stored with a model, which may be of somebody else.

    Fields of the machine, such as `data.workers`, have their defaults, with a note for `say`.

    Raises:
        UserError: as `read_yaml`.
    """
    reading = read_stored(text, where)
    for note in reading.notes:
        say(f"note: {note}")
    return reading.experiment


def read_stored(text: str, where: str) -> Reading:
    """Reads as `from_stored`, with the position of each value."""
    reading = read_tree(compose(text, where), stored=True)
    for path in input_paths(reading.experiment):
        note_stored_buckets(path)
    return reading


def from_yaml(text: str, where: str = "yaml") -> Experiment:
    """Returns the experiment that a YAML text spells; `where` names the text in errors.

    Raises:
        UserError: as `read_yaml`.
    """
    return read_yaml(text, where).experiment


def read_yaml(text: str, file: str, *, name: str = "experiment") -> Reading:
    """Reads an experiment with the position of each value; `file` names the text in positions.

    Fields that the text does not set have their defaults, or the values of a recipe that it starts
    from (`recipe: ssd_mobilenet_v1_300x300`).

    Raises:
        UserError: it is not YAML, or holds an unknown or repeated name or a value of a wrong type.
    """
    return read_tree(compose(text, file), name=name)


def read_tree(root: Node, *, name: str = "experiment", stored: bool = False) -> Reading:
    """Reads an experiment that is parsed already; else as `read_yaml` or `read_stored`."""
    base, origins = Experiment(), {}
    notes: list[str] = []
    if root.value is None:
        root = Node({}, root.where)
    _refuse_other_files(root)
    if isinstance(root.value, dict):
        # A copy: the tree may be read again.
        root = Node(dict(root.value), root.where)
    if isinstance(root.value, dict) and "recipe" in root.value:
        start = root.value.pop("recipe")
        path = recipe_path(str(start.value), where=start.where)
        reading = read_yaml(path.read_text(encoding="utf-8"), path.name)
        base, origins = reading.experiment, dict(reading.origins)
    imports = root.value.pop("imports", None) if isinstance(root.value, dict) else None
    try:
        base = dataclasses.replace(base, name=name)
        experiment = update(base, root, origins, notes=notes, stored=stored)
    except UnknownKindError as error:
        if imports is None:
            raise
        words = [item.value for item in imports.value] if isinstance(imports.value, list) else []
        problem = f"{error.what}: it was written with parts of {', '.join(map(str, words))}"
        fix = " ".join(f"{Parameter('import', f'{word}')}" for word in words)
        raise UserError(problem, where=error.where, fix=fix) from error
    return Reading(experiment=experiment, origins=origins, notes=tuple(notes))


def _refuse_other_files(root: Node) -> None:
    """Refuses what is no experiment at all without quoting it.

    A model directory that is not trusted may hold a link to a private file.
    """
    valid = ["recipe", "imports", *(field.name for field in dataclasses.fields(Experiment))]
    names = root.value if isinstance(root.value, dict) else {"": root}
    if names and not any(difflib.get_close_matches(name, valid, n=1) for name in names):
        problem = "this is no experiment: it has none of its sections"
        raise UserError(problem, where=root.where, fix=nearest("", valid))


def to_yaml(experiment: Experiment, origins: Mapping[str, str] | None = None) -> str:
    """Returns the experiment as YAML that reads back as the same experiment.

    Every field is there, in the schema's order, and floats have all their digits. With `origins`,
    a comment says where a value was set. `imports` names the modules of parts that are not this
    package's.
    """
    imports: list[Plain] = [*imports_of(experiment)]
    fields = section_to_plain(experiment)
    return dump({"imports": imports, **fields} if imports else fields, origins)


def dump(mapping: dict[str, Plain], origins: Mapping[str, str] | None = None) -> str:
    """Returns plain values as YAML, in the order of the mapping; else as `to_yaml`."""
    return "\n".join(_emit_mapping(mapping, "", "", origins or {})) + "\n"


def _emit_mapping(
    mapping: dict[str, Plain], path: str, indent: str, origins: Mapping[str, str]
) -> Iterator[str]:
    for name, value in mapping.items():
        inner = f"{path}.{name}" if path else name
        # An origin can be a --set with line breaks in its value; a comment ends with its line.
        comment = f"  # {' '.join(origins[inner].split())}" if inner in origins else ""
        if isinstance(value, dict) and value:
            yield f"{indent}{name}:{comment}"
            yield from _emit_mapping(value, inner, indent + "  ", origins)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{indent}{name}:{comment}"
            for index, item in enumerate(value):
                assert isinstance(item, dict)
                block = _emit_mapping(item, f"{inner}.{index}", indent + "  ", origins)
                yield f"{indent}- {next(block).lstrip()}"
                yield from block
        else:
            yield f"{indent}{name}: {_spell(value)}{comment}"


def _spell(value: Plain) -> str:
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, list):
        return f"[{', '.join(_spell(item) for item in value)}]"
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return _spell_float(value)
    return _spell_text(value) if isinstance(value, str) else str(value)


def _spell_float(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"an experiment holds finite numbers only, not {value}")
    mantissa, mark, exponent = repr(value).partition("e")
    # In YAML 1.1 a number with an exponent has a point.
    return mantissa + (".0" if "." not in mantissa else "") + mark + exponent


def _spell_text(value: str) -> str:
    if _PLAIN.fullmatch(value) and compose(value, "").value == value:
        return value
    quoted: str = yaml.safe_dump(value, default_style='"', allow_unicode=True, width=2**31)
    return quoted.rstrip("\n")


CHECKPOINTS = "checkpoints"
"""The folder of a model directory that has a folder for each step."""
_OWN = "{model_directory}/"


def store_paths(experiment: Experiment, directory: Path) -> Experiment:
    """Returns the experiment as it is stored: with paths into the directory relative to it."""
    return _with_paths(experiment, partial(_stored, directory.absolute()))


def place_paths(experiment: Experiment, folder: Path) -> Experiment:
    """Returns a stored experiment with the paths that it has from the current folder.

    `folder` is where it was read: a model directory, or the folder of a checkpoint in one.

    Raises:
        UserError: a path leads out of the directory.
    """
    directory = folder.parent.parent if folder.parent.name == CHECKPOINTS else folder
    return _with_paths(experiment, partial(_placed, directory))


def input_paths(experiment: Experiment) -> list[str]:
    """Returns all paths and addresses that an experiment reads."""
    paths: list[str] = []

    def note(path: str) -> str:
        paths.append(path)
        return path

    _with_paths(experiment, note)
    return paths


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
        fix = "write the path as it is from the current folder"
        raise UserError(f"{path} leads out of the model directory", where=str(directory), fix=fix)
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
