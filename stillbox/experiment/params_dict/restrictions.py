"""Restrictions: `anchor.min_level == retinanet_head.min_level`. Sides are keys or constants."""

import operator
import re
from collections.abc import Callable
from typing import Any

from stillbox.errors import UserError, nearest
from stillbox.experiment.params_dict.keys import KEYS
from stillbox.experiment.params_dict.merging import spell
from stillbox.experiment.values import Plain
from stillbox.textformat.yaml_tree import compose

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_LIST = "restrictions"
_RESTRICTION = re.compile(r"\s*(?P<left>\S+?)\s*(?P<sign>==|!=|<=|>=|<|>)\s*(?P<right>.+?)\s*")
_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")

Look = Callable[[str], Plain]
"""From a key's path to its value."""
Place = Callable[[str], str | None]
"""From a key's path to where it is given; None for a default."""


def check_restriction(text: str, value: Look, where: Place, *, fix: str | None = None) -> None:
    """Checks that two keys, or a key and a constant, stand in a relation.

    Args:
        text: a key, one of == != < > <= >=, and a key or a constant.
        value: value of a key.
        where: where it is given.
        fix: remedy for a dictionary that breaks it.

    Raises:
        UserError: the relation does not hold; or the text is no restriction.
    """
    match = _RESTRICTION.fullmatch(text)
    if match is None:
        signs = " ".join(_OPERATORS)
        raise UserError(
            f"{text!r} is no restriction", where=_LIST, fix=f"two keys and one of {signs}"
        )
    left, right = (_operand(match[side], value) for side in ("left", "right"))
    try:
        holds = _OPERATORS[match["sign"]](left, right)
    except TypeError:
        holds = False
    if holds:
        return
    keys = [match[side] for side in ("left", "right") if match[side] in KEYS]
    found = " and ".join(f"{key} is {spell(value(key))}{_at(where(key))}" for key in keys)
    places = [where(key) for key in keys if where(key)]
    raise UserError(
        f"{found}, but {match['left']} {match['sign']} {match['right']} is required",
        where=places[0] if places else None,
        fix=fix,
    )


def _operand(text: str, value: Look) -> Plain:
    if text in KEYS:
        return value(text)
    if _KEY.fullmatch(text):
        raise UserError(f"there is no key {text!r}", where=_LIST, fix=nearest(text, KEYS))
    # Lists of Python programs say None.
    return None if text == "None" else compose(text, _LIST, lines=False).plain()


def _at(where: str | None) -> str:
    return f" ({where})" if where else " (the default)"
