"""From the scalars of a tree to the types of fields, for all dialects that are YAML."""

import re
import sys
import typing
from typing import Literal, NoReturn

from stillbox.errors import UserError, nearest
from stillbox.experiment.values import Hint, Value
from stillbox.textformat.yaml_tree import Node

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
# How people write a number. YAML 1.1 takes `1e-4` and `1e+3` for text.
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


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
    if accepts_float and isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    # True is an int in Python, but no number of steps.
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(node, path, WANTED[hint])
    # So is neither nan nor infinity, nor a number that a float cannot hold.
    if accepts_float and not abs(value) <= sys.float_info.max:
        refuse(node, path, WANTED[hint])
    if hint is float:
        return float(value)
    if isinstance(value, float) and not (loose and value.is_integer()):
        refuse(node, path, WANTED[hint])
    return int(value)
