"""What a sentence refers to: a parameter, a field of the experiment, a command.

The command line, Python and JSON name the same thing differently: `--batch-size 8`, `batch_size=8`.
So a sentence holds the thing itself, and `worded` turns it into the words of a surface:

    f"choose another {Parameter('output')}, or {Setting('train.batch_size', 8)}"

In the text a reference is what Python would say between two invisible characters of Unicode, so a
text that nobody words reads well in Python.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeAlias

# A reference begins with the character of its kind. These are operators of mathematics without a
# glyph; the word joiner stands before each option of a command.
_PARAMETER, _SETTING, _COMMAND, _END, _OPTION = "\u2061", "\u2062", "\u2063", "\u2064", "\u2060"
# What YAML takes for a text as it is, but for words such as null.
_PLAIN = re.compile(r"[A-Za-z_./][\w./?*+@-]*(?<!null)(?<!true)(?<!false)")
_MARK = re.compile(f"([{_PARAMETER}-{_COMMAND}])([^{_PARAMETER}-{_END}]*){_END}")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function, which is an option of a command."""

    name: str
    value: str | None = None
    """What to give it; None: the parameter is named alone."""

    def __str__(self) -> str:
        return f"{_PARAMETER}{self.name}={self.value or ''}{_END}"


@dataclass(frozen=True)
class Setting:
    """A field of the experiment with a value for it."""

    path: str
    """Dotted, such as `train.batch_size`."""
    value: object
    """Of the field's type, or a text that stands for one, such as PATH."""

    @classmethod
    def parse(cls, text: str) -> "Setting":
        """Returns the setting of a text of the form `path=value`."""
        path, _, value = text.partition("=")
        return cls(path, value)

    def __str__(self) -> str:
        return f"{_SETTING}{self.path}={_value_text(self.value)}{_END}"


class Command:
    """A command of stillbox.

    Args:
        verb: such as `data convert`.
        arguments: what follows the verb.
        options: parameter -> value; True: the option takes none.
    """

    def __init__(self, verb: str, *arguments: str, **options: str | bool) -> None:
        self.words = " ".join((verb, *arguments))
        self.options: dict[str, str | bool] = options

    def __str__(self) -> str:
        options = ", ".join(f"{_OPTION}{name}={value}" for name, value in self.options.items())
        return f"{_COMMAND}`stillbox {self.words}`{' with ' * bool(options)}{options}{_END}"


Reference: TypeAlias = Parameter | Setting | Command
Wording: TypeAlias = Callable[[Reference], str]
"""How a surface names what a sentence refers to."""


def references(text: str | None) -> list[Reference]:
    """Returns what a text refers to, in order."""
    return [_reference(match) for match in _MARK.finditer(text or "")]


def _reference(mark: re.Match[str]) -> Reference:
    kind, text = mark.groups()
    if kind == _SETTING:
        return Setting.parse(text)
    if kind == _PARAMETER:
        name, _, value = text.partition("=")
        return Parameter(name, value or None)
    command, *options = text.split(_OPTION)
    words = command.removesuffix(" with ")[1:-1].removeprefix("stillbox ")
    pairs = (option.removesuffix(", ").partition("=") for option in options)
    return Command(words, **{name: value == "True" or value for name, _, value in pairs})


def python_words(reference: Reference) -> str:
    """Returns how a caller of functions names a reference."""
    return str(reference)[1:-1].replace(_OPTION, "")


def worded(text: str, wording: Wording = python_words) -> str:
    """Returns a text with the words of a surface in place of its references."""
    return _MARK.sub(lambda mark: wording(_reference(mark)), text) if _END in text else text


def _value_text(value: object) -> str:
    """Returns a value of a field as YAML on one line; a text stands for itself."""
    return value if isinstance(value, str) else _inner_text(value)


def _inner_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inner_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_inner_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str | PurePath):
        # Within a list, or in a section, a comma would end it.
        return str(value) if _PLAIN.fullmatch(str(value)) else json.dumps(str(value))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return json.dumps(value)
