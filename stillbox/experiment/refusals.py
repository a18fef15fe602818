"""Collects every error of a config instead of stopping at the first.

Removes the offending field from the parsed config and reads it again until nothing is rejected.
So each error is independent of those before it.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.reader import NoModelError, read_block
from stillbox.experiment.reading import Reading
from stillbox.experiment.resolve import Resolved, Tree, find_config, open_config, overridden
from stillbox.experiment.updating import NO_CHANGES, Changes, apply_changes
from stillbox.references import Setting
from stillbox.textformat.parser import Block, Field
from stillbox.textformat.yaml_tree import Node

AnyTree = TypeVar("AnyTree", Block, Node)

_MOST = 100
# Sections of a pipeline.config, and the sections of an experiment that they become.
_SECTIONS = {
    "train_config": "train",
    "train_input_reader": "data",
    "eval_input_reader": "data",
    "eval_config": "evaluation",
}


@dataclass(frozen=True)
class ConfigErrors:
    """The errors of a config, and the rest of it."""

    errors: tuple[UserError, ...]
    """In the order in which they were found."""
    read: Resolved | None
    """The config without the refused fields; None if no part of it can be read."""
    touched: frozenset[str] = frozenset()
    """Sections of the experiment from which a field was removed."""


def find_refusals(config: str | Path, overrides: Changes = NO_CHANGES) -> ConfigErrors:
    """Reads a config as `resolve`, and returns all of its errors."""
    errors: list[UserError] = []
    try:
        path = find_config(config)
        tree, read = open_config(path)
    except UserError as error:
        return ConfigErrors((error,), None)
    cutter, reading = _Pruner(), None
    while reading is None and len(errors) < _MOST:
        try:
            if isinstance(tree, Block):
                reading = read_block(tree, damaged=cutter.damaged)
            else:
                reading = read(tree)
        except NoModelError as error:
            errors.append(error)
            tree = cutter.add_model(tree)
        except UserError as error:
            said = {(other.where, other.what) for other in errors}
            if not cutter.follows(error) and (error.where, error.what) not in said:
                errors.append(error)
            tree, removed = cutter.cut(tree, error.where)
            if not removed:
                break
    if reading is None:
        return ConfigErrors(tuple(errors), None)
    kept, more = _apply(reading, overrides)
    sections = frozenset(_SECTIONS.get(name, name) for name in cutter.touched)
    touched = sections | {_section_of(error) for error in more}
    return ConfigErrors((*errors, *more), overridden(reading, str(path), kept), touched)


def _apply(reading: Reading, changes: Changes) -> tuple[Changes, list[UserError]]:
    """Returns the changes that can be applied, and why others cannot."""
    experiment, errors, kept = reading.experiment, list[UserError](), dict[str, object]()
    for path, value in changes.items():
        try:
            experiment = apply_changes(experiment, {path: value})
            kept[path] = value
        except UserError as error:
            errors.append(error)
    return kept, errors


def _section_of(error: UserError) -> str:
    path = error.about.path if isinstance(error.about, Setting) else error.where or ""
    return path.partition(".")[0].strip()


@dataclass(frozen=True)
class _Cut(Generic[AnyTree]):
    """A tree without one of its fields."""

    tree: AnyTree
    places: tuple[str, ...]
    """Positions of the sections around the removed field, the innermost first."""
    section: str
    """The outermost section around the removed field, or the field itself."""


class _Pruner:
    """Removes fields from trees, and records where."""

    def __init__(self) -> None:
        self.touched: set[str] = set()
        """Outermost sections from which a field was removed."""
        self.damaged: set[str] = set()
        """Positions of all sections from which a field was removed."""

    def follows(self, error: UserError) -> bool:
        """Returns whether an error is about a section from which a field was removed.

        The removal may be its cause, such as a choice without a member.
        """
        return error.where in self.damaged

    def add_model(self, tree: Tree) -> Tree:
        """Returns a pipeline.config with an empty model in place of the missing one."""
        where = "model"
        self.touched.add("model")
        self.damaged.add(where)
        fields = tree.fields if isinstance(tree, Block) else ()
        return Block((*fields, Field("model", (Block((), where),), where)), where)

    def cut(self, tree: Tree, where: str | None) -> tuple[Tree, bool]:
        """Returns the tree without the field at a position, and whether there is such a field."""
        cut: _Cut[Block] | _Cut[Node] | None = None
        if where is not None and isinstance(tree, Block):
            cut = _cut_block(tree, where)
        elif where is not None and isinstance(tree, Node):
            cut = _cut_node(tree, where)
        if cut is None:
            return tree, False
        self.damaged |= set(cut.places)
        self.touched.add(cut.section)
        return cut.tree, True


def _cut_block(block: Block, where: str) -> _Cut[Block] | None:
    for index, field in enumerate(block.fields):
        before, after = block.fields[:index], block.fields[index + 1 :]
        if where in (field.where, *(value.where for value in field.values)):
            return _Cut(Block((*before, *after), block.where), (block.where,), field.name)
        for at, value in enumerate(field.values):
            inner = _cut_block(value, where) if isinstance(value, Block) else None
            if inner is None:
                continue
            values = (*field.values[:at], inner.tree, *field.values[at + 1 :])
            changed = Field(field.name, values, field.where, field.is_list)
            places = inner.places
            # A message is pointed at by its brace or by its name.
            if places[-1] == value.where:
                places = (*places, field.where)
            return _Cut(Block((*before, changed, *after), block.where), places, field.name)
    return None


def _cut_node(node: Node, where: str) -> _Cut[Node] | None:
    content = node.value
    if not isinstance(content, dict | list):
        return None
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    for name, part in list(parts):
        inner = _cut_node(part, where)
        if part.where == where or (inner is not None and _lost_kind(part, inner.tree)):
            return _Cut(_replaced(node, name, None), (node.where,), str(name))
        if inner is not None:
            return _Cut(_replaced(node, name, inner.tree), inner.places, str(name))
    return None


def _lost_kind(before: Node, after: Node) -> bool:
    """Returns whether a section lost its kind, without which it would be taken for another one."""
    return isinstance(before.value, dict) and "kind" in before.value and "kind" not in after.value


def _replaced(node: Node, name: str | int, part: Node | None) -> Node:
    """Returns a node with another part, or without it."""
    items = dict(node.value) if isinstance(node.value, dict) else dict(enumerate(node.value))
    if part is None:
        del items[name]
    else:
        items[name] = part
    value = items if isinstance(node.value, dict) else list(items.values())
    return dataclasses.replace(node, value=value)
