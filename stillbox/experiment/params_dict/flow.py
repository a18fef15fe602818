"""Values in one line: YAML's flow style, but any text may stand unquoted.

In YAML `*`, `?`, `&` and `[` have a meaning of their own, which is not meant in
`train_file_pattern: /data/train-*`. A plain value here ends at a comma or a closing bracket that
is not its own.
"""

from collections.abc import Iterator

from stillbox.errors import UserError
from stillbox.experiment.values import Node
from stillbox.experiment.yaml_config import compose

_CLOSES = {"{": "}", "[": "]"}


class Scanner:
    """Reads one text from left to right."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where, self._at = text, where, 0

    def whole_value(self) -> Node:
        """Returns the one value that the text holds.

        Raises:
            UserError: there is more, or less.
        """
        value = self._value(",]}")
        if self._rest().strip():
            raise self._broken("nothing more")
        return value

    def pairs(self) -> Iterator[tuple[str, Node]]:
        """Yields names and values of `a.b=1, c=[1, 2]`.

        Raises:
            UserError: the text has another form.
        """
        while self._rest().strip():
            name, equals, _ = self._rest().partition("=")
            if not equals or "," in name.strip():
                raise self._broken("name=value")
            self._at += len(name) + 1
            yield name.strip(), self._value(",")
            self._skip()
            if self._rest() and not self._take(","):
                raise self._broken("a comma")

    def _rest(self) -> str:
        return self._text[self._at :]

    def _skip(self) -> None:
        self._at = len(self._text) - len(self._rest().lstrip())

    def _take(self, character: str) -> bool:
        self._skip()
        if not self._rest().startswith(character):
            return False
        self._at += 1
        return True

    def _broken(self, wanted: str) -> UserError:
        found = repr(self._rest().strip()[:30]) if self._rest().strip() else "the end"
        return UserError(
            f"{wanted} is expected before {found}",
            where=self._where,
            fix="put text that holds any of , [ ] { } in quotes",
        )

    def _value(self, ends: str) -> Node:
        self._skip()
        first = self._rest()[:1]
        if first == "{":
            return self._mapping()
        if first == "[":
            return self._list()
        if first in ("'", '"'):
            return self._quoted(first)
        return self._plain(ends)

    def _mapping(self) -> Node:
        content: dict[str, Node] = {}
        self._take("{")
        while not self._take("}"):
            name = self._name()
            if name in content:
                raise UserError(
                    f"{name!r} is given twice", where=self._where, fix="keep one of them"
                )
            content[name] = self._value(",}")
            if not self._take(",") and not self._rest().lstrip().startswith("}"):
                raise self._broken("a comma or }")
        return Node(content, self._where)

    def _name(self) -> str:
        self._skip()
        first = self._rest()[:1]
        if first in ("'", '"'):
            name = str(self._quoted(first).value)
            if not self._take(":"):
                raise self._broken("a colon")
            return name
        name, colon, _ = self._rest().partition(":")
        if not colon or any(character in name for character in ",[]{}"):
            raise self._broken("name: value")
        self._at += len(name) + 1
        return name.strip()

    def _list(self) -> Node:
        items = []
        self._take("[")
        while not self._take("]"):
            items.append(self._value(",]"))
            if not self._take(",") and not self._rest().lstrip().startswith("]"):
                raise self._broken("a comma or ]")
        return Node(items, self._where)

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
        while self._at < len(self._text):
            character = self._text[self._at]
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
