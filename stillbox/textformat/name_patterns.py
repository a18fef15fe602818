"""Regular expressions of users, found in names in a time that no expression can extend.

Python's `re` tries one way after another, up to 2^n of them. Here all places in all names are kept
as the bits of one integer, and each step of an expression moves all of them at once (Baeza-Yates
and Gonnet, CACM 35, 1992). Syntax, and what a single character matches, are those of `re`.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from stillbox.errors import UserError

_LONGEST = 10_000
_DEEPEST = 50
# Steps of an expression over all names. Thousands of names take some dozens, or as many as the
# longest of them has characters.
_MOST_STEPS = 50_000
_FLAGS = re.IGNORECASE | re.DOTALL | re.ASCII | re.UNICODE
_REASONS = {
    "(?P=": "refers back to a group",
    "(?(": "asks for a group",
    "(?>": "has an atomic group",
}
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")
_AROUND = re.compile(r"\(\?(<?)([=!])")
_COMMENT = re.compile(r"\(\?(?:#[^)]*|[a-zA-Z]+)\)")
_REPEAT = re.compile(r"(?:([*+?])|\{(?!\})(\d*)(,?)(\d*)\})")
_PLACE = re.compile(r"\^|\$|\\[AbBZ]")
_CHARACTER = re.compile(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]"
    r"|\\(?:x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|N\{[^}]*\}|0[0-7]{0,2}|[^1-9])"
    r"|[^\\]",
    re.DOTALL,
)


class _Names:
    """Names one behind the other; a place is the bit of a character, or of the end of a name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = [name.replace("\0", "\ufffd") for name in names]
        self.text = "".join(f"{name}\0" for name in self.names)
        self.steps = 0
        self.masks: dict[tuple[str | _Step, int], int] = {}

    def spend(self) -> None:
        """Counts a step."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise _TooLongError

    def holding(self, source: str, flags: int) -> int:
        """Returns the places of characters that an expression of one character matches."""
        if (source, flags) not in self.masks:
            one = re.compile(source, flags)
            bits = {ord(char): "1" if one.fullmatch(char) else "0" for char in set(self.text)}
            self.masks[source, flags] = _bits(self.text.translate({**bits, 0: "0"}))
        return self.masks[source, flags]

    def at(self, source: str) -> int:
        """Returns the places where an expression of no character matches."""
        if (source, -1) not in self.masks:
            place = re.compile(source)
            marks = [["0"] * (len(name) + 1) for name in self.names]
            for name, mark in zip(self.names, marks, strict=True):
                for found in place.finditer(name):
                    mark[found.start()] = "1"
            self.masks[source, -1] = _bits("".join(map("".join, marks)))
        return self.masks[source, -1]

    def around(self, step: "_Step", *, behind: bool) -> int:
        """Returns the places that an expression leads to from any, or from where it leads on."""
        if (step, behind) not in self.masks:
            every = (1 << len(self.text)) - 1
            self.masks[step, behind] = step(every, self, not behind)
        return self.masks[step, behind]

    def with_any(self, places: int) -> list[bool]:
        """Returns for each name whether it has one of the places."""
        marks, start, found = f"{places:b}"[::-1], 0, []
        for name in self.names:
            found.append("1" in marks[start : start + len(name) + 1])
            start += len(name) + 1
        return found


_Step = Callable[[int, _Names, bool], int]
"""From places to all places that an expression leads to from there, or from which it leads there if
the last argument, `back`, is true."""


class NamePattern:
    """A regular expression of `re` that does not refer to its own groups.

    Raises:
        UserError: it is none.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._flags = _check(text)
        self._at = 0
        self._step = self._choice(depth=0)

    def search(self, names: Iterable[str]) -> list[bool]:
        """Returns for each name whether the expression is found anywhere in it.

        Raises:
            UserError: that takes too long.
        """
        return self.search_all(_Names(list(names)))

    def match(self, names: Iterable[str]) -> list[bool]:
        """Returns for each name whether it begins with the expression; else as `search`."""
        every = _Names(list(names))
        return self._found(every, every.at(r"\A"))

    def search_all(self, names: _Names) -> list[bool]:
        """As `search`; expressions for the same names share the time that all may take."""
        return self._found(names, (1 << len(names.text)) - 1)

    def _found(self, names: _Names, starts: int) -> list[bool]:
        try:
            return names.with_any(self._step(starts, names, False))
        except _TooLongError:
            what = f"the regular expression {_shown(self.text)} takes too long"
            raise UserError(what, fix="nest fewer repetitions") from None

    def _choice(self, depth: int) -> _Step:
        if depth > _DEEPEST:
            what = f"the regular expression {_shown(self.text)} nests groups over {_DEEPEST} deep"
            raise UserError(what, fix="take the inner groups apart")
        ways = [self._sequence(depth)]
        while self.text[self._at : self._at + 1] == "|":
            self._at += 1
            ways.append(self._sequence(depth))
        if len(ways) == 1:
            return ways[0]
        return lambda places, names, back: functools.reduce(
            lambda found, way: found | way(places, names, back), ways, 0
        )

    def _sequence(self, depth: int) -> _Step:
        steps: list[_Step] = []
        self._skip()
        while self._at < len(self.text) and self.text[self._at] not in "|)":
            steps.append(self._repeated(self._atom(depth)))
            self._skip()

        def follow(places: int, names: _Names, back: bool) -> int:
            names.spend()
            for step in reversed(steps) if back else steps:
                if not places:
                    break
                places = step(places, names, back)
            return places

        return follow

    def _atom(self, depth: int) -> _Step:
        if group := _GROUP.match(self.text, self._at):
            self._at = group.end()
            inner = self._choice(depth + 1)
            self._at += 1
            return inner
        if around := _AROUND.match(self.text, self._at):
            self._at = around.end()
            inner = self._choice(depth + 1)
            self._at += 1
            behind, negative = bool(around[1]), around[2] == "!"
            return functools.partial(_look, inner, behind, negative)
        if place := _PLACE.match(self.text, self._at):
            self._at = place.end()
            return functools.partial(_stay, place[0])
        character = _CHARACTER.match(self.text, self._at)
        if character is None or character[0] == "(":
            raise self._refusal()
        self._at = character.end()

        return functools.partial(_move, character[0], self._flags)

    def _skip(self) -> None:
        """Skips comments and the flags of the whole."""
        while comment := _COMMENT.match(self.text, self._at):
            self._at = comment.end()

    def _repeated(self, step: _Step) -> _Step:
        self._skip()
        repeat = _REPEAT.match(self.text, self._at)
        if repeat is None:
            return step
        self._at = repeat.end()
        if self.text[self._at : self._at + 1] == "+":
            raise self._refusal("repeats possessively")
        # A lazy repetition leads to the same places.
        self._at += self.text[self._at : self._at + 1] == "?"
        least, most = _bounds(repeat)
        return functools.partial(_repeat, step, least, most)

    def _refusal(self, reason: str = "refers back to a group") -> UserError:
        rest = self.text[self._at :]
        known = (why for start, why in _REASONS.items() if rest.startswith(start))
        reason = next(known, "sets flags inside" if rest.startswith("(?") else reason)
        what = f"the regular expression {_shown(self.text)} {reason}, which can take for ever"
        return UserError(what, fix="write it without")


def found_in(
    texts: Iterable[str], names: Mapping[str, str], where: str
) -> Iterator[tuple[str, set[str]]]:
    """Yields each expression with the keys that contain it, or whose values do.

    Raises:
        UserError: one is none, or all together take too long.
    """
    keys, values = _Names(list(names)), _Names(list(names.values()))
    for text in texts:
        try:
            pattern = NamePattern(text)
            found = zip(names, pattern.search_all(keys), pattern.search_all(values), strict=True)
        except UserError as error:
            raise UserError(error.what, where=where, fix=error.fix) from error
        yield text, {key for key, in_key, in_value in found if in_key or in_value}


class _TooLongError(Exception):
    """An expression that needs more than `_MOST_STEPS`."""


def _check(text: str) -> int:
    """Returns the flags of an expression that `re` understands."""
    if len(text) > _LONGEST:
        what = f"a regular expression of {len(text):,} characters"
        raise UserError(what, fix=f"give at most {_LONGEST:,}, and several expressions instead")
    try:
        flags = re.compile(text).flags
    except (re.error, OverflowError, RecursionError) as error:
        what = f"{_shown(text)} is no regular expression: {error}"
        raise UserError(what, fix="see Python's re") from error
    if flags & ~_FLAGS:
        what = f"the regular expression {_shown(text)} has flags other than i, s, a and u"
        raise UserError(what, fix="write it without; names have one line")
    return flags


def _bounds(repeat: re.Match[str]) -> tuple[int, int | None]:
    sign, low, comma, high = repeat.groups()
    if sign:
        return int(sign == "+"), 1 if sign == "?" else None
    least = int(low or 0)
    return least, (int(high) if high else None) if comma else least


def _stay(source: str, places: int, names: _Names, back: bool) -> int:
    names.spend()
    return places & names.at(source)


def _look(step: _Step, behind: bool, negative: bool, places: int, names: _Names, back: bool) -> int:
    names.spend()
    found = names.around(step, behind=behind)
    return places & ~found if negative else places & found


def _move(source: str, flags: int, places: int, names: _Names, back: bool) -> int:
    names.spend()
    held = names.holding(source, flags)
    return (places >> 1) & held if back else (places & held) << 1


def _repeat(
    step: _Step, least: int, most: int | None, places: int, names: _Names, back: bool
) -> int:
    for _ in range(least):
        after = step(places, names, back)
        if after == places:
            break
        places = after
    found, rounds = places, 0
    # Places that were there already lead nowhere new.
    while places and (most is None or rounds < most - least):
        places = step(places, names, back) & ~found
        found |= places
        rounds += 1
    return found


def _bits(marks: str) -> int:
    """Returns the integer whose lowest bit is the first mark."""
    return int(marks[::-1] or "0", 2)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
