"""Reads text files that people name, and parses YAML into a tree of values with positions.

A text file is a regular file of a bounded size, in UTF-8. Only this module parses YAML. No tag
runs code. The cost of a text is bounded: its length, its depth, the number of its values after
aliases are followed, and the length of its numbers.
"""

import codecs
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from stillbox import numerals
from stillbox.errors import UserError
from stillbox.textformat.parser import MAX_DEPTH
from stillbox.untrusted import read_untrusted

MAX_BYTES = 2**19
"""Greatest size of a config: a thousand names of shards take a fifth of it."""


def read_text_file(
    path: str | Path,
    *,
    where: str | None = None,
    fix: str,
    most: int = MAX_BYTES,
    inside: Path | None = None,
) -> str:
    """Returns the text of a file, without its byte order mark; arguments as in `read_untrusted`.

    Raises:
        UserError: `read_untrusted` refuses it, or it is not UTF-8.
    """
    path = Path(path)
    data = read_untrusted(path, most=most, where=where, fix=fix, inside=inside)
    try:
        # utf-8-sig: editors on Windows put a byte order mark in front.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error


def _not_utf8(path: Path, error: UnicodeDecodeError) -> UserError:
    # The decoder has the file without its byte order mark.
    before = bytes(error.object[: error.start]).decode()
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    problem = f"byte {error.object[error.start]:#04x} is not UTF-8"
    if error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        problem = "the file is UTF-16, as its first two bytes say"
    # Nothing of the file is quoted: it may be one that should not have been opened.
    where = f"{path}:{line}:{column}"
    return UserError(problem, where=where, fix="save it as UTF-8, if it is a text at all")


MAX_VALUES = 30_000
"""Values of a text; one that is read twice by an alias counts twice."""
_STANDARD = "tag:yaml.org,2002:"
_MERGE, _TIMESTAMP = f"{_STANDARD}merge", f"{_STANDARD}timestamp"
_TAGS: dict[type[yaml.Node], frozenset[str]] = {
    yaml.SequenceNode: frozenset({"seq"}),
    yaml.MappingNode: frozenset({"map"}),
    yaml.ScalarNode: frozenset({"str", "int", "float", "bool", "null", "timestamp", "value"}),
}
Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""A scalar, a list of plain values or a mapping from names to them."""
# JSON escapes a character beyond 16 bits as two surrogates.
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_QUOTES = "put text that holds any of ? : # , [ ] { } in quotes"


@dataclass(frozen=True)
class Node:
    """A plain value and the position where it was written."""

    value: Any
    """A scalar, a list of nodes, or a mapping from names to nodes."""
    where: str
    """file:line:column, or the option that holds it."""
    text: str | None = None
    """A command line's value as typed: what a text field takes, whatever YAML makes of it."""

    def plain(self) -> Plain:
        """Returns the value without positions: scalars, lists and dictionaries."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        return [n.plain() for n in self.value] if isinstance(self.value, list) else self.value


def compose(text: str, file: str, *, lines: bool = True, as_text: bool = False) -> Node:
    """Parses YAML into nodes with positions in `file`, with line and column if `lines`.

    Dates are text. Aliases and merge keys (`<<`) are followed. With `as_text` each scalar is its
    characters, so that `yes`, `010` and `~` can be names.

    Raises:
        UserError: it is not YAML, a mapping has one name twice, a tag stands for more than text,
            numbers, truth values, lists and mappings, or the text is too long, too deep, or
            multiplies itself by aliases.
    """
    if len(text) > MAX_BYTES:
        problem = f"{len(text):,} characters are too many for YAML; {MAX_BYTES:,} are read"
        raise UserError(problem, where=file, fix="is this the right file?")
    try:
        reader = _Reader(text, file, lines, as_text)
        root = reader.get_single_node()
        return Node(None, file) if root is None else reader.convert(root)
    except yaml.reader.ReaderError as error:
        line, before = text.count("\n", 0, error.position) + 1, text[: error.position]
        where = f"{file}:{line}:{len(before) - before.rfind(chr(10))}" if lines else file
        problem = f"not YAML: the control character {chr(int(error.character))!r}"
        raise UserError(
            problem, where=where, fix="take it out, or see if this is a text"
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark is not None and lines else file
        # The other errors say it in several lines.
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UserError(f"not YAML: {problem}", where=where, fix=_QUOTES) from error


def whole_number(text: str) -> int | None:
    """Returns the whole number that a scalar of YAML 1.1 spells, as `1_000` and `0x1f`."""
    return numerals.literal(text.replace("_", ""))


class _Reader(yaml.SafeLoader):
    """PyYAML's parser with limits; the values are built here, with their positions."""

    def __init__(self, text: str, file: str, lines: bool, as_text: bool) -> None:
        self._file, self._lines, self._as_text = file, lines, as_text
        self._depth = self._composed = self._converted = 0
        super().__init__(text)

    def _where(self, mark: yaml.Mark) -> str:
        return f"{self._file}:{mark.line + 1}:{mark.column + 1}" if self._lines else self._file

    def scan_flow_scalar_non_spaces(self, double: bool, start_mark: yaml.Mark) -> list[str]:
        """Reads a part of a quoted text; an escape such as `\\UFFFFFFFF` is no character."""
        try:
            text = "".join(super().scan_flow_scalar_non_spaces(double, start_mark))
        except (ValueError, OverflowError) as error:
            problem = "the escape names no character"
            raise yaml.scanner.ScannerError(None, start_mark, problem, self.get_mark()) from error
        return [_PAIR.sub(_whole_character, text)]

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Composes one node; PyYAML calls it for each."""
        mark = self.peek_event().start_mark
        self._composed += 1
        if self._composed > MAX_VALUES:
            problem = f"more than {MAX_VALUES:,} values"
            raise UserError(problem, where=self._where(mark), fix="is this the right file?")
        self._enter(mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _enter(self, mark: yaml.Mark) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
            raise UserError(
                problem, where=self._where(mark), fix="look for brackets that do not end"
            )

    def convert(self, node: yaml.Node) -> Node:
        """Returns the values of a node of PyYAML."""
        where = self._where(node.start_mark)
        self._converted += 1
        if self._converted > MAX_VALUES:
            problem = f"its aliases (*name) multiply it to more than {MAX_VALUES:,} values"
            raise UserError(problem, where=where, fix="write the values out")
        self._check_tag(node, where)
        self._enter(node.start_mark)
        value: bool | int | float | str | list[Node] | dict[str, Node] | None
        if isinstance(node, yaml.SequenceNode):
            value = [self.convert(item) for item in node.value]
        elif isinstance(node, yaml.MappingNode):
            value = self._mapping(node)
        else:
            value = self._scalar(node, where)
        self._depth -= 1
        return Node(value, where)

    def _check_tag(self, node: yaml.Node, where: str) -> None:
        if node.tag.removeprefix(_STANDARD) not in _TAGS[type(node)]:
            shown = node.tag.replace(_STANDARD, "!!")
            problem = f"the tag {shown} has no meaning here, and nothing of it was run"
            fix = "take it out: values are text, numbers, true, false, null, lists and sections"
            raise UserError(problem, where=where, fix=fix)

    def _scalar(self, node: yaml.Node, where: str) -> bool | int | float | str | None:
        if self._as_text:
            return node.value
        kind = node.tag.removeprefix(_STANDARD)
        if kind in ("int", "float") and (problem := numerals.too_long(node.value)):
            raise UserError(problem, where=where, fix="write it with an exponent, or in quotes")
        if kind in ("timestamp", "value"):
            return node.value
        try:
            whole = whole_number(node.value) if kind == "int" else None
            # PyYAML reads `1:30`, a number of base 60, too.
            value: bool | int | float | str | None = (
                self.construct_object(node, deep=True) if whole is None else whole
            )
        except (ValueError, LookupError, ArithmeticError) as error:
            problem = f"{node.value!r} is no {kind}"
            raise UserError(problem, where=where, fix="put text in quotes") from error
        return value

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        section: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, item in node.value:
            place = self._where(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise UserError("a name is one word", where=place, fix="name: value")
            if key.tag == _MERGE:
                # If several mappings have a name, the first counts.
                for content in self._merged(item, place):
                    merged = content | merged
                continue
            if key.value in section:
                problem = f"{key.value!r} is given twice"
                raise UserError(problem, where=place, fix="keep one of them")
            # Names point at themselves; a section's place is where its name stands.
            section[key.value] = dataclasses.replace(self.convert(item), where=place)
        return merged | section

    def _merged(self, node: yaml.Node, place: str) -> Iterator[dict[str, Node]]:
        inner = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for merged_node in inner:
            content = self.convert(merged_node).value
            if not isinstance(content, dict):
                problem = "<< merges sections, and this is none"
                raise UserError(problem, where=place, fix="<<: *name")
            yield content


def _whole_character(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16", "surrogatepass").decode("utf-16")
