"""The schema's dataclasses as plain values: mappings, lists, scalars."""

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, TypeVar

from stillbox.experiment.variants import RegisteredConfig
from stillbox.textformat.yaml_tree import Node, Plain

Value: TypeAlias = Any
"""What a field of the schema holds: a scalar, None, a tuple of values or a dataclass."""
Hint: TypeAlias = Any
"""A type as a field of the schema declares it."""

Mark = TypeVar("Mark")


def section_to_plain(section: Value) -> dict[str, Plain]:
    """Returns a dataclass as a mapping, a variant's `kind` first; else as `to_plain`."""
    return {name: to_plain(item) for name, item in _fields(section).items()}


def _fields(section: Value) -> dict[str, Value]:
    """Returns the fields of a dataclass by name, a variant's `kind` first."""
    # A class variable is no field of a dataclass, so the kind is added by hand.
    kind = {"kind": section.kind} if hasattr(section, "kind") else {}
    return kind | {
        field.name: getattr(section, field.name) for field in dataclasses.fields(section)
    }


def to_plain(value: Value) -> Plain:
    """Returns dataclasses as mappings and tuples as lists."""
    if dataclasses.is_dataclass(value):
        return section_to_plain(value)
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def node_of(plain: object, where: str) -> Node:
    """Wraps a plain tree; all of it stands at `where`."""
    if isinstance(plain, dict):
        return Node({name: node_of(item, where) for name, item in plain.items()}, where)
    if isinstance(plain, list | tuple):
        return Node([node_of(item, where) for item in plain], where)
    return Node(plain, where)


def leaf_paths(value: Value, prefix: str = "") -> Iterator[str]:
    """Yields the dotted paths of all fields that are not sections."""
    plain = to_plain(value) if dataclasses.is_dataclass(value) else value
    if not isinstance(plain, dict):
        yield prefix
        return
    for name, item in plain.items():
        yield from leaf_paths(item, f"{prefix}.{name}" if prefix else name)


def settings_of(cls: Hint, prefix: str = "") -> Iterator[str]:
    """Yields what `--set` may be given for a dataclass of the schema, for the shells to complete.

    `path=` for each field of any kind, `path=value` where the values are a few words.
    """
    for name, hint in field_types(cls).items():
        path, members = f"{prefix}{name}", choices(hint)
        for member in members:
            if kind := getattr(member, "kind", ""):
                yield f"{path}.kind={kind}"
            if dataclasses.is_dataclass(member):
                yield from settings_of(member, f"{path}.")
            elif typing.get_origin(member) is Literal:
                yield from (f"{path}={word}" for word in typing.get_args(member))
            elif member is bool:
                yield from (f"{path}=true", f"{path}=false")
            elif member is not types.NoneType:
                yield f"{path}="


def sections_of(value: Value, path: str = "") -> Iterator[tuple[str, Value]]:
    """Yields a section of an experiment and all sections in it, each with its dotted path."""
    if dataclasses.is_dataclass(value):
        yield path, value
        inside = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple):
        inside = {str(index): item for index, item in enumerate(value)}
    else:
        return
    for name, item in inside.items():
        yield from sections_of(item, f"{path}.{name}" if path else name)


def differences(before: Value, after: Value, path: str = "") -> Iterator[tuple[str, Plain, Plain]]:
    """Yields path, old and new plain value of every field in which two experiments differ.

    Lists of sections are compared element by element. A field that only one of them has (another
    kind, another length) is None in the other. `path` is the path in either.
    """
    if before == after:
        return
    before_parts, after_parts = _parts(before), _parts(after)
    if before_parts is None or after_parts is None:
        yield path, to_plain(before), to_plain(after)
        return
    for name in before_parts | after_parts:
        inner = f"{path}.{name}" if path else name
        yield from differences(before_parts.get(name), after_parts.get(name), inner)


def _parts(value: Value) -> dict[str, Value] | None:
    """Returns the named parts of a section or of a list of sections, None for anything else."""
    if dataclasses.is_dataclass(value):
        return _fields(value)
    # A list of scalars counts as one value: it is written in one line and has one origin.
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        return {str(index): item for index, item in enumerate(value)}
    return value if isinstance(value, dict) else None


@functools.cache
def field_types(cls: Hint) -> dict[str, Hint]:
    """Returns the resolved type of every field of a dataclass."""
    # Resolving annotations costs more than everything else here, hence the cache.
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@functools.cache
def field_marks(cls: Hint, kind: type[Mark]) -> dict[str, Mark]:
    """Returns the marks of a kind, such as `Range`, of fields that have one in their annotation."""
    hints = typing.get_type_hints(cls, include_extras=True)
    marks = {field.name: _mark_in(hints[field.name], kind) for field in dataclasses.fields(cls)}
    return {name: mark for name, mark in marks.items() if mark is not None}


def _mark_in(hint: Hint, kind: type[Mark]) -> Mark | None:
    marks = [item for item in getattr(hint, "__metadata__", ()) if isinstance(item, kind)]
    inner = (_mark_in(member, kind) for member in typing.get_args(hint))
    return next((item for item in (*marks, *inner) if item is not None), None)


def choices(hint: Hint) -> tuple[Hint, ...]:
    """Returns the members of a union or a family, the type itself if it is neither."""
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    members = typing.get_args(hint) if union else (hint,)
    classes: list[Hint] = []
    for member in members:
        is_family = getattr(member, "__base__", None) is RegisteredConfig
        classes += member.variants.values() if is_family else (member,)
    return tuple(classes)
