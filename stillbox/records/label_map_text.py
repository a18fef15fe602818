"""The few forms of protobuf text in which label maps are written."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from stillbox.errors import UserError, nearest

SHAPE = "write one `item { id: 1 name: 'dog' }` for every class"

# Fields of an item that say nothing about the id; their values are read over.
_READ_OVER = frozenset(
    {"keypoints", "ancestor_ids", "descendant_ids", "frequency", "instance_count", "mask"}
)
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
      | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<word>[A-Za-z_][A-Za-z0-9_.]*|[-+]?[0-9][A-Za-z0-9.]*)
      | (?P<mark>[{}<>:,;\[\]])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_NAMED_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f"}


@dataclass(frozen=True)
class LabelMapItem:
    """One class."""

    id: int
    """1 or more."""
    name: str
    """What records carry as class text, unless they carry display names."""
    display_name: str = ""
    """What people read; may be empty."""


def read_items(text: str, where: str) -> list[tuple[LabelMapItem, int]]:
    """Returns the items of a label map, each with its line.

    Raises:
        UserError: the text is no label map; the message names the line.
    """
    return list(_Reader(text, where).items())


def quoted(text: str) -> str:
    """Returns a string literal that reads back as `text`."""
    for plain, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f"'{text}'"


def _unquoted(token: str) -> str:
    def character(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code[:1] == b"x" and len(code) > 1:
            return bytes([int(code[1:], 16)])
        if code.isdigit():
            return bytes([int(code, 8) & 0xFF])
        return _NAMED_ESCAPES.get(code, code)

    return _ESCAPE.sub(character, token[1:-1].encode()).decode()


class _Reader:
    """Reads the few forms of protobuf text that label maps use."""

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self.tokens: list[tuple[str, str, int]] = []
        at, line = 0, 1
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                self.fail(f"{text[at]!r} has no meaning here", line)
            if match.lastgroup != "space":
                self.tokens.append((str(match.lastgroup), match[0], line))
            line += match[0].count("\n")
            at = match.end()
        self.tokens.append(("end", "the end of the file", line))
        self.at = 0

    def fail(self, what: str, line: int, fix: str = SHAPE) -> NoReturn:
        raise UserError(what, where=f"{self.where}:{line}", fix=fix)

    def next(self) -> tuple[str, str, int]:
        token = self.tokens[self.at]
        self.at += token[0] != "end"
        return token

    def accept(self, *marks: str) -> bool:
        if self.tokens[self.at][1] in marks and self.tokens[self.at][0] == "mark":
            self.at += 1
            return True
        return False

    def items(self) -> Iterator[tuple[LabelMapItem, int]]:
        while True:
            kind, word, line = self.next()
            if kind == "end":
                return
            if kind != "word" or word != "item":
                self.fail(f"expected 'item' and found {word!r}", line)
            self.accept(":")
            if not self.accept("{", "<"):
                self.fail("an item starts with '{'", self.tokens[self.at][2])
            yield self.item(line), line
            self.accept(",", ";")

    def item(self, line: int) -> LabelMapItem:
        values: dict[str, str | int] = {}
        while not self.accept("}", ">"):
            kind, key, key_line = self.next()
            if kind != "word":
                self.fail(f"expected a field of the item and found {key}", key_line)
            if key in _READ_OVER:
                self.read_over()
            elif key not in ("id", "name", "display_name"):
                known = {"id", "name", "display_name", *_READ_OVER}
                self.fail(f"an item has no field {key!r}", key_line, nearest(key, known))
            elif key in values:
                self.fail(f"the item has two of {key!r}", key_line)
            else:
                if not self.accept(":"):
                    self.fail(f"':' is missing after {key!r}", key_line)
                values[key] = self.number() if key == "id" else self.text()
            self.accept(",", ";")
        name, display = str(values.get("name", "")), str(values.get("display_name", ""))
        if "id" not in values:
            self.fail("the item has no id", line)
        if not name and not display:
            self.fail("the item has neither name nor display_name", line)
        return LabelMapItem(int(values["id"]), name or display, display)

    def number(self) -> int:
        _, word, line = self.next()
        try:
            return int(word, 0)
        except ValueError:
            self.fail(f"{word} is not a whole number", line)

    def text(self) -> str:
        kind, word, line = self.next()
        if kind != "text":
            self.fail(f"expected a name in quotes and found {word}", line, "write name: 'dog'")
        parts = [_unquoted(word)]
        while self.tokens[self.at][0] == "text":  # neighbours are one string
            parts.append(_unquoted(self.next()[1]))
        return "".join(parts)

    def read_over(self) -> None:
        """Goes past the value of a field that is of no use here."""
        self.accept(":")
        closing = {"{": "}", "<": ">", "[": "]"}
        depth: list[str] = []
        while True:
            kind, word, line = self.next()
            if kind == "end":
                self.fail("the item does not end", line)
            if kind == "mark" and word in closing:
                depth.append(closing[word])
            elif depth and word == depth[-1]:
                depth.pop()
            if not depth:
                return
