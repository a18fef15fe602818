"""Regular expressions of users, found in names within a limit of time.

Syntax and meaning are as in Python's `re`, which has no limit: it tries one way after another, up
to 2^n of them. The library `regex` searches, and stops in time.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stillbox.errors import UserError

if TYPE_CHECKING:
    import regex

_LONGEST = 1_000
# `regex` writes the least number of repetitions out, and millions of them end the process.
_MOST_REPEATED = 10_000
# Of the processor. Thousands of names take a tenth of it.
_SECONDS = 2.0
_ESCAPE_OR_BRACE = re.compile(r"(\\N\{[^}]*\}|\\.)|\{(?!\d*,?\d*\})", re.DOTALL)


class NamePattern:
    """A regular expression of `re`.

    Raises:
        UserError: it is none, or it is too long.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._pattern = _compile(text)

    def search(self, names: Iterable[str], end: float | None = None) -> list[bool]:
        """Returns for each name whether the expression is found anywhere in it.

        Args:
            names: the names.
            end: when to stop, in seconds of `time.process_time`; None: the limit from now on.

        Raises:
            UserError: that takes too long.
        """
        return self._found(self._pattern.search, names, end)

    def match(self, names: Iterable[str]) -> list[bool]:
        """Returns for each name whether it begins with the expression; else as `search`."""
        return self._found(self._pattern.match, names, None)

    def _found(
        self, find: Callable[..., Any], names: Iterable[str], end: float | None
    ) -> list[bool]:
        end = time.process_time() + _SECONDS if end is None else end
        try:
            return [
                find(name, timeout=max(end - time.process_time(), 1e-6)) is not None
                for name in names
            ]
        except TimeoutError:
            problem = f"the regular expression {_shown(self.text)} takes too long"
            raise UserError(problem, fix="nest fewer repetitions") from None


def found_in(
    texts: Iterable[str], names: Mapping[str, str], where: str
) -> Iterator[tuple[str, set[str]]]:
    """Yields each expression with the keys where the key or the value contains it.

    Raises:
        UserError: one is none, or all together take too long.
    """
    end = time.process_time() + _SECONDS
    for text in texts:
        try:
            pattern = NamePattern(text)
            matches = pattern.search(names, end), pattern.search(names.values(), end)
        except UserError as error:
            raise UserError(error.what, where=where, fix=error.fix) from error
        yield text, {key for key, *places in zip(names, *matches, strict=True) if any(places)}


def _compile(text: str) -> "regex.Pattern[str]":
    # Most experiments have no expression, and the import takes 11 ms.
    import regex

    if len(text) > _LONGEST:
        problem = f"a regular expression of {len(text):,} characters"
        raise UserError(problem, fix=f"give at most {_LONGEST:,}, and several expressions instead")
    try:
        re.compile(text)
        _refuse_repetitions(text)
        # Beginnings such as {e<=1} are text in `re`, and inexact matches in `regex`.
        pattern = regex.compile(_ESCAPE_OR_BRACE.sub(lambda part: part[1] or r"\{", text))
    except (re.error, regex.error, OverflowError, RecursionError) as error:
        problem = f"{_shown(text)} is no regular expression: {error}"
        raise UserError(problem, fix="see Python's re") from error
    return pattern


def _refuse_repetitions(text: str) -> None:
    least = math.prod(int(count) or 1 for count in re.findall(r"\{(\d+)", text))
    if least > _MOST_REPEATED:
        problem = f"the regular expression {_shown(text)} repeats {least:,} times"
        raise UserError(problem, fix=f"repeat at most {_MOST_REPEATED:,} times")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
