"""The page of all fields, made from the schema: `python -m tools.fields`."""

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Iterator

from stillbox.experiment.schema import Experiment, Range
from stillbox.experiment.schema.ranges import Outside
from stillbox.experiment.values import Hint, Value, choices, field_marks, field_types, to_plain

_HEADER = """\
# All fields of an experiment

Made from the schema by `python -m tools.fields > docs/fields.md`.
A path such as `train.optimizer` holds one of several kinds; `kind` says which.
"""


def page() -> str:
    """Returns a Markdown page: one section for each class, one row for each field."""
    places: dict[type, list[str]] = {}
    for cls, path in _sections(Experiment, ""):
        places.setdefault(cls, []).append(path)
    return _HEADER + "".join(_section(cls, paths) for cls, paths in places.items())


def _sections(cls: type, path: str) -> Iterator[tuple[type, str]]:
    yield cls, path
    for name, hint in field_types(cls).items():
        inner = f"{path}.{name}" if path else name
        for member in choices(hint):
            if dataclasses.is_dataclass(member):
                yield from _sections(typing.cast(type, member), inner)
            elif typing.get_origin(member) is tuple:
                for element in choices(typing.get_args(member)[0]):
                    if dataclasses.is_dataclass(element):
                        yield from _sections(typing.cast(type, element), f"{inner}.N")


def _section(cls: type, paths: list[str]) -> str:
    kind = f", kind `{cls.kind}`" if hasattr(cls, "kind") else ""
    where = (
        ", ".join(f"`{path}`" for path in dict.fromkeys(paths)) if paths != [""] else "top level"
    )
    rows = [
        f"| `{name}` | {_type(hint)}{_range(cls, name)} | {_default(getattr(cls(), name))} "
        f"| {_meanings(cls)[name]}{_stored(cls, name)} |"
        for name, hint in field_types(cls).items()
    ]
    table = "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])
    summary = inspect.cleandoc(cls.__doc__ or "").replace("\n", " ")
    return f"\n## {where}{kind}\n\n{summary}\n" + (f"\n{table}\n" if rows else "")


def _range(cls: Hint, name: str) -> str:
    allowed = field_marks(cls, Range).get(name)
    return f" {allowed}" if allowed else ""


def _stored(cls: Hint, name: str) -> str:
    outside = field_marks(cls, Outside).get(name)
    free = outside is None or outside.stored
    return "" if free else " Not taken from an experiment that is stored with a model."


def _type(hint: Hint) -> str:
    members = choices(hint)
    if hint is types.NoneType:
        return "null"
    if len(members) > 1:
        return " or ".join(dict.fromkeys(_type(member) for member in members))
    if dataclasses.is_dataclass(hint):
        return f"`{hint.kind}`" if hasattr(hint, "kind") else "section"
    if typing.get_origin(hint) is tuple:
        return f"list of {_type(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(hint))
    return {bool: "true or false", int: "whole number", float: "number", str: "text"}[hint]


def _default(value: Value) -> str:
    plain = to_plain(value)
    if isinstance(plain, dict):
        return f"`{plain['kind']}`" if "kind" in plain else "see there"
    if isinstance(plain, list) and plain and isinstance(plain[0], dict):
        return f"{len(plain)} of them"
    if isinstance(plain, list):
        items = (f"{item:.4g}" if isinstance(item, float) else str(item) for item in plain)
        return f"`[{', '.join(items)}]`"
    if plain is None or isinstance(plain, bool):
        return {None: "`null`", True: "`true`", False: "`false`"}[plain]
    return "empty" if plain == "" else f"`{plain}`"


@functools.cache
def _meanings(cls: Hint) -> dict[str, str]:
    """Returns the sentence under each field; Python keeps it in the source only."""
    (tree,) = ast.parse(inspect.getsource(cls)).body
    # What a class inherits is explained where it is declared.
    bases: list[Hint] = [base for base in cls.__bases__ if dataclasses.is_dataclass(base)]
    meanings = {name: text for base in bases for name, text in _meanings(base).items()}
    for field, below in itertools.pairwise(typing.cast(ast.ClassDef, tree).body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                meanings[name] = inspect.cleandoc(text).replace("\n", " ").replace("|", "\\|")
    return meanings


if __name__ == "__main__":
    sys.stdout.write(page())
