"""Merges plain values into an experiment, strictly typed by the schema.

`convert` takes a scalar of a tree to the type of a field. The one operation on experiments is
`update`. A file is merged into the defaults or into a recipe, and changes of fields into what was
read. Fields that a tree does not mention keep their values.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Literal, NoReturn, TypeAlias

from stillbox import numerals
from stillbox.errors import UserError, nearest
from stillbox.experiment.imports import import_entry_points
from stillbox.experiment.schema import Experiment
from stillbox.experiment.schema.ranges import Outside
from stillbox.experiment.values import Hint, Value, choices, field_marks, field_types, leaf_paths
from stillbox.object_storage import name_buckets
from stillbox.references import Setting
from stillbox.textformat.yaml_tree import Node, compose

WANTED: dict[Hint, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple[int, ...]: "a list of whole numbers",
    tuple[float, ...]: "a list of numbers",
    tuple[str, ...]: "a list of texts",
}
"""What a field of each type is, for messages."""


def convert(hint: Hint, node: Node, path: str, *, loose: bool = False) -> Value:
    """Returns a node's value as the type of its field: a word, text, a truth value or a number.

    Args:
        hint: the type: `Literal`, `str`, `bool`, `int` or `float`.
        node: the value with its place.
        path: the field, for messages.
        loose: `9e4` is a whole number too, and a number is text.

    Raises:
        UserError: the value is of another type.
    """
    if typing.get_origin(hint) is Literal:
        return _word(typing.get_args(hint), node, path)
    if hint is str:
        return _text(node, path, loose=loose)
    if hint is bool and not isinstance(node.value, bool):
        refuse(node, path, WANTED[hint])
    return node.value if hint is bool else _number(hint, node, path, loose=loose)


def refuse(node: Node, path: str, wanted: str, fix: str | None = None) -> NoReturn:
    """Refuses a value that is not what its field is.

    Raises:
        UserError: always.
    """
    raise UserError(f"{path} is {wanted}, not {describe(node)}", where=node.where, fix=fix)


def describe(node: Node) -> str:
    """Returns what a value is, for messages."""
    if isinstance(node.value, dict | list):
        return "a section" if isinstance(node.value, dict) else "a list"
    return "null" if node.value is None else repr(node.value)


def _word(allowed: tuple[Value, ...], node: Node, path: str) -> Value:
    # True and 1.0 equal 1 in Python, and are other words.
    if (type(node.value), node.value) not in [(type(word), word) for word in allowed]:
        words = tuple(map(str, allowed))
        refuse(node, path, f"one of {', '.join(words)}", nearest(str(node.value), words))
    return node.value


def _text(node: Node, path: str, *, loose: bool) -> str:
    value = node.value
    if isinstance(value, str):
        return value
    if node.text is not None:
        return node.text
    # `model_id: 49` means the text.
    if loose and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    refuse(node, path, WANTED[str], "put it in quotes")


def _number(hint: Hint, node: Node, path: str, *, loose: bool) -> float:
    value, accepts_float = node.value, loose or hint is float
    # YAML 1.1 takes `1e-4` and `1e+3` for text.
    if accepts_float and isinstance(value, str) and not math.isnan(read := numerals.number(value)):
        value = read
    # True is an int in Python, but no number of steps. Neither nan nor infinity is a number here,
    # nor is a number that a float cannot hold.
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(node, path, WANTED[hint])
    if accepts_float and math.isnan(numerals.number(value)):
        refuse(node, path, WANTED[hint])
    if hint is float:
        return float(value)
    if isinstance(value, float) and not (loose and value.is_integer()):
        refuse(node, path, WANTED[hint])
    return int(value)


def update(
    current: Experiment,
    node: Node,
    origins: dict[str, str],
    *,
    notes: list[str] | None = None,
    stored: bool = False,
) -> Experiment:
    """Merges a tree into an experiment.

    Args:
        current: the experiment; its values stay where the tree has none.
        node: the tree. A `kind` that differs from the current one takes that variant's defaults.
        origins: dotted path -> where; what the tree sets is entered, what it displaces removed.
        notes: takes a note for each field of an older version that has no effect any more; without
            it, such a field is refused.
        stored: the tree comes with a model: fields of the machine (`Outside`) have no effect.

    Raises:
        UserError: an unknown name or a value of the wrong type; names path, place and remedy.
    """
    import_entry_points("stillbox.parts")
    walk = _Update(origins, notes, stored=stored)
    result: Experiment = walk.dataclass((Experiment,), current, node, "")
    if walk.left and notes is not None:
        # Values are not quoted: they are of whoever made the model.
        fields = ", ".join(walk.left)
        notes.append(f"{node.where}: not taken from a stored experiment: {fields}; set them anew")
    return result


def read_section(default: Value, node: Node, path: str) -> Value:
    """Merges a tree into one dataclass, of the schema or not; else as `update`."""
    return _Update({}).dataclass((type(default),), default, node, path)


class UnknownKindError(UserError):
    """A part has a kind that no class is registered for."""


class _Update:
    """One walk over a tree, guided by the schema's types."""

    def __init__(
        self, origins: dict[str, str], notes: list[str] | None = None, *, stored: bool = False
    ) -> None:
        self._origins, self._notes, self._stored = origins, notes, stored
        self.left: list[str] = []
        """Fields of the machine that are not taken."""
        # Inside a list that replaces another there is nothing to forget, for thousands of items.
        self._is_new = False

    def value(self, hint: Hint, current: Value, node: Node, path: str) -> Value:
        """Returns the new value of a field of type `hint`."""
        members = choices(hint)
        # A union is either several dataclasses, or one type and None.
        if node.value is None and types.NoneType in members:
            return self._set(None, node, path)
        members = tuple(member for member in members if member is not types.NoneType)
        if dataclasses.is_dataclass(members[0]):
            return self.dataclass(members, current, node, path)
        if typing.get_origin(members[0]) is tuple:
            return self._tuple(typing.get_args(members[0])[0], current, node, path)
        return self._set(convert(members[0], node, path), node, path)

    def dataclass(self, classes: tuple[Hint, ...], current: Value, node: Node, path: str) -> Value:
        """Returns the new value of a section: one class, or several with a kind each."""
        if isinstance(node.value, str) and hasattr(classes[0], "kind"):
            # A kind alone is that kind with its defaults: `similarity: iou`.
            node = Node({"kind": node}, node.where)
        if not isinstance(node.value, dict):
            refuse(node, path, "a section with named fields", _example(node, path, classes))
        # A copy: the kind is taken out of it, and the tree may be merged into another value again.
        content = dict(node.value)
        if hasattr(classes[0], "kind"):
            current = self._variant(classes, current, content.pop("kind", None), node, path)
        elif current is None:
            current = classes[0]()
        hints = field_types(current.__class__)
        outside = field_marks(current.__class__, Outside)
        retired: dict[str, tuple[Value, str]] = getattr(current, "retired", {})
        changes = {}
        for name, item in content.items():
            inner = f"{path}.{name}" if path else name
            if name in retired:
                self._pass_over(inner, item, *retired[name])
                continue
            if name not in hints:
                raise _unknown(name, item, path, classes, current)
            if name in outside and hints[name] is str and item.value is None:
                # No file is called null; `./null` is.
                item = Node("", item.where)
            value = self.value(hints[name], getattr(current, name), item, inner)
            if not self._stored or name not in outside or outside[name].stored:
                changes[name] = value
            elif value != getattr(current, name):
                self._forget(inner)
                self.left.append(inner)
        return dataclasses.replace(current, **changes)

    def _pass_over(self, path: str, node: Node, default: Value, instead: str) -> None:
        """Notes a field of an older version, or refuses it where there are no notes."""
        if self._notes is None:
            raise UserError(f"there is no field {path} any more", where=node.where, fix=instead)
        if node.value != default:
            self._notes.append(f"{node.where}: {path} has no effect any more: {instead}")

    def _variant(
        self, classes: tuple[Hint, ...], current: Value, kind: Node | None, node: Node, path: str
    ) -> Value:
        kinds = {cls.kind: cls for cls in classes}
        if kind is None:
            if current is None and len(classes) > 1:
                raise UserError(
                    f"{path} needs a kind", where=node.where, fix=f"kind: {' or '.join(kinds)}"
                )
            return classes[0]() if current is None else current
        if isinstance(kind.value, dict | list):
            refuse(kind, f"{path}.kind", "one word", " or ".join(kinds))
        if kind.value not in kinds:
            raise UnknownKindError(
                f"{path} has no kind {kind.value!r}",
                where=kind.where,
                fix=nearest(str(kind.value), kinds),
            )
        if type(current) is not kinds[kind.value]:
            # What was set for another variant does not carry over, and neither do its origins.
            self._forget(path)
            current = kinds[kind.value]()
        self._origins[f"{path}.kind"] = kind.where
        return current

    def _tuple(self, hint: Hint, current: Value, node: Node, path: str) -> tuple[Value, ...]:
        if isinstance(node.value, dict):
            if not node.value or not all(map(str.isdecimal, node.value)):
                refuse(node, path, "a list", "[first, second]")
            return self._elements(hint, current or (), node, path)
        # The old elements are gone, and with them what was known about their origins.
        items = node.value if isinstance(node.value, list) else [node]
        if node.value == "" or (node.text is not None and not node.text.strip()):
            items = []  # `--set data.evaluation.paths=` names nothing
        self._forget(path)
        outside, self._is_new = self._is_new, True
        result = tuple(
            self.value(hint, None, item, f"{path}.{index}") for index, item in enumerate(items)
        )
        self._is_new = outside
        self._origins[path] = node.where
        return result

    def _elements(
        self, hint: Hint, current: tuple[Value, ...], node: Node, path: str
    ) -> tuple[Value, ...]:
        """Changes single elements of a list: `train.augmentations.0.probability`."""
        result = list(current)
        for name, item in node.value.items():
            place = numerals.count(name)
            if place is None or place >= len(result):
                problem = f"{path} has no element {name}"
                raise UserError(
                    problem, where=item.where, fix=f"it has {len(result)}, counted from 0"
                )
            old = result[place]
            result[place] = self.value(hint, old, item, f"{path}.{name}")
        return tuple(result)

    def _set(self, value: Value, node: Node, path: str) -> Value:
        self._forget(path)
        self._origins[path] = node.where
        return value

    def _forget(self, path: str) -> None:
        if self._is_new:
            return
        for key in [k for k in self._origins if k == path or k.startswith(f"{path}.")]:
            del self._origins[key]


def _example(node: Node, path: str, classes: tuple[Hint, ...]) -> str:
    """Returns how a field of a section is set: its kind, or else its first field."""
    first = next(iter(dataclasses.fields(classes[0])), None)
    if len(classes) > 1 or first is None:
        return f"{path}.kind=..."
    if node.value is None and first.default == "":
        return f"{Setting(f'{path}.{first.name}', '')} takes none"
    return f"{path}.{first.name}=..."


# Fields that are looked for in the wrong section, with the reason.
_MISPLACED = {
    "augmentations": "set train.augmentations: evaluation scores images as they are stored, and "
    "only training augments them"
}


def _unknown(
    name: str, node: Node, path: str, classes: tuple[Hint, ...], current: Value
) -> UserError:
    kind = f" (kind {current.kind})" if hasattr(current, "kind") else ""
    problem = f"{path or 'the experiment'}{kind} has no field {name!r}"
    if name in _MISPLACED:
        return UserError(problem, where=node.where, fix=_MISPLACED[name])
    # Most likely first: a field of another kind, one further down, a misspelt one.
    others = [cls.kind for cls in classes if name in field_types(cls)]
    if others:
        return UserError(problem, where=node.where, fix=f"kind {' or '.join(others)} has it")
    below = [leaf for leaf in leaf_paths(current) if leaf.rpartition(".")[2] == name]
    if below:
        prefix = f"{path}." if path else ""
        fix = "did you mean " + " or ".join(f"'{prefix}{leaf}'" for leaf in below[:3]) + "?"
        return UserError(problem, where=node.where, fix=fix)
    return UserError(problem, where=node.where, fix=nearest(name, field_types(current.__class__)))


Changes: TypeAlias = Mapping[str, object]
"""Dotted field -> value; lists and sections are sequences and mappings."""
NO_CHANGES: Changes = types.MappingProxyType({})


class YamlText(str):
    """A value as a person types it: YAML, unless its field is a text."""


def apply_changes(
    experiment: Experiment, changes: Changes, origins: dict[str, str] | None = None
) -> Experiment:
    """Applies changes in order.

    A bare value stands for a list of one, a number addresses an element
    (`train.augmentations.0.probability`), and a new `kind` takes that variant's defaults.

    Args:
        experiment: what they change.
        changes: the new values.
        origins: dotted path -> where; brought up to date.

    Raises:
        UserError: an unknown path or a value of the wrong type.
    """
    origins = {} if origins is None else origins
    for path, value in changes.items():
        where = str(Setting(path, value))
        name_buckets(where)
        node = _at_path(path.split("."), _node_of(value, where))
        experiment = update(experiment, node, origins)
    return experiment


def merged(first: Changes, then: Changes) -> Changes:
    """Returns changes followed by others, which win."""
    return {path: value for path, value in first.items() if path not in then} | dict(then)


def _node_of(value: object, where: str) -> Node:
    """Returns a value as the tree that YAML would have of it."""
    if isinstance(value, YamlText):
        return _parse(value, where)
    if isinstance(value, Mapping):
        return Node({str(name): _node_of(item, where) for name, item in value.items()}, where)
    if isinstance(value, list | tuple):
        return Node([_node_of(item, where) for item in value], where)
    return Node(str(value) if isinstance(value, PurePath) else value, where)


def _at_path(names: Sequence[str], node: Node) -> Node:
    """Returns the tree that has a value at a path and nothing else."""
    for name in reversed(names):
        node = Node({name: node}, node.where)
    return node


def _parse(text: str, where: str) -> Node:
    try:
        value = compose(text, where, lines=False).value
    except UserError:
        # A text such as `a: b` is no YAML; a text field takes it as it is. Brackets are meant as a
        # list or a section, and must not become a file name.
        if text.lstrip().startswith(("[", "{")):
            raise
        value = text
    return Node(value, where, text=text)
