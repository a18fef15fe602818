"""Values in one line: YAML's flow style, but any text may stand unquoted.

In YAML `*`, `?`, `&` and `[` have a meaning of their own, which is not meant in
`train_file_pattern: /data/train-*`. A plain value here ends at a comma or a closing bracket that
is not its own.
"""

from collections.abc import Iterator

from stillbox.errors import UserError
from stillbox.textformat.parser import MAX_DEPTH
from stillbox.textformat.yaml_tree import Node, compose

_CLOSES = {"{": "}", "[": "]"}


class Scanner:
    """Reads one text from left to right."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where, self._at = text, where, 0
        self._depth = 0

    def whole_value(self) -> Node:
        """Returns the one value of the text.

        Raises:
            UserError: there is more, or less.
        """
        value = self._value(",]}")
        if self._peek():
            raise self._broken("nothing more")
        return value

    def pairs(self) -> Iterator[tuple[str, Node]]:
        """Yields names and values of `a.b=1, c=[1, 2]`.

        Raises:
            UserError: the text has another form.
        """
        while self._peek():
            yield self._name("=", "name=value"), self._value(",")
            if self._peek() and not self._take(","):
                raise self._broken("a comma")

    def _peek(self) -> str:
        """Returns the next character that is no space, empty at the end."""
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _broken(self, wanted: str) -> UserError:
        rest = self._text[self._at :].strip()
        return UserError(
            f"{wanted} is expected before {repr(rest[:30]) if rest else 'the end'}",
            where=self._where,
            fix="put text that holds any of , [ ] { } in quotes",
        )

    def _value(self, ends: str) -> Node:
        first = self._peek()
        if first == "{":
            return self._mapping()
        if first == "[":
            return Node([self._value(",]") for _ in self._items("]")], self._where)
        return self._quoted(first) if first in ("'", '"') else self._plain(ends)

    def _items(self, closing: str) -> Iterator[None]:
        """Yields in front of each item in brackets, and reads the commas between them."""
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UserError(f"nested deeper than {MAX_DEPTH} levels", where=self._where)
        while not self._take(closing):
            yield
            if not self._take(",") and self._peek() != closing:
                raise self._broken(f"a comma or {closing}")
        self._depth -= 1

    def _mapping(self) -> Node:
        content: dict[str, Node] = {}
        for _ in self._items("}"):
            name = self._name(":", "name: value")
            if name in content:
                what = f"{name!r} is given twice"
                raise UserError(what, where=self._where, fix="keep one of them")
            content[name] = self._value(",}")
        return Node(content, self._where)

    def _name(self, separator: str, wanted: str) -> str:
        first = self._peek()
        if first in ("'", '"'):
            name = str(self._quoted(first).value)
            if not self._take(separator):
                raise self._broken("a colon" if separator == ":" else "an equals sign")
            return name
        name, found, _ = self._text[self._at :].partition(separator)
        if not found or any(character in name for character in ",[]{}"):
            raise self._broken(wanted)
        self._at += len(name) + 1
        return name.strip()

    def _quoted(self, quote: str) -> Node:
        end = self._at + 1
        while end < len(self._text) and self._text[end] != quote:
            # A backslash escapes the next character, but only between double quotes.
            end += 2 if quote == '"' and self._text[end] == "\\" else 1
        if end >= len(self._text):
            raise self._broken(f"a closing {quote}")
        quoted = self._text[self._at : end + 1]
        self._at = end + 1
        return Node(compose(quoted, self._where, lines=False).value, self._where)

    def _plain(self, ends: str) -> Node:
        """Reads up to one of `ends` that closes nothing inside the value, as in `train-[0-9]*`."""
        open_brackets: list[str] = []
        start = self._at
        for character in self._text[start:]:
            if open_brackets and character == open_brackets[-1]:
                open_brackets.pop()
            elif character in _CLOSES:
                open_brackets.append(_CLOSES[character])
            elif character in ends and not open_brackets:
                break
            self._at += 1
        text = self._text[start : self._at].strip()
        return Node(_typed(text, self._where), self._where, text=text)


def _typed(text: str, where: str) -> object:
    """Returns a scalar with its type in YAML: a number, a truth value, null or text."""
    try:
        value = compose(text, where, lines=False).value
    except UserError:
        return text
    return text if isinstance(value, dict | list) else value
