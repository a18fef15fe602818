"""The exception for users: what is wrong, where, and how to mend it."""

import copyreg
import difflib
import re
from collections.abc import Iterable

from stillbox.printing import printable, printable_line
from stillbox.references import Parameter, Reference, Wording, python_words, references, worded

# The limit of `what` and of `fix`, which together fit on one screen.
_COLUMNS, _ROWS = 100, 11
_SHORT_WORD = 3
_LONG_WORD = re.compile(r"(\S{100})\S{60,}(\S{20})")


class UserError(ValueError):
    """An input of the user cannot be used.

    The command line prints it without a traceback and exits with code 2. Its text fits on one
    screen and names parameters as Python does; the attributes have the full length, with marks
    for what they refer to (`stillbox.references`).

    Args:
        what: what is wrong, one sentence.
        where: file:line:column, record number, parameter or setting that holds it.
        fix: how to mend it.
    """

    def __init__(
        self, what: str, *, where: str | Reference | None = None, fix: str | Reference | None = None
    ) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.fix = None if fix is None else str(fix)
        super().__init__(self.describe())

    @property
    def about(self) -> Reference | None:
        """The parameter or setting that is wrong; None: a place in a file, or nothing."""
        return next(iter(references(self.where)), None)

    def describe(self, wording: Wording = python_words) -> str:
        """Returns the text of the error in the words of a surface."""
        where = worded(self.where or "", wording)
        if isinstance(self.about, Parameter):
            # Python's `format=` is `format` at the head of a line.
            where = where.removesuffix("=")
        what, fix = worded(self.what, wording), worded(self.fix or "", wording)
        place = f"{printable_line(where)}: " if where else ""
        remedy = f"\n  fix: {_fit(fix)}" if fix else ""
        return f"{place}{_fit(what)}{remedy}"

    # For other processes: by default it would be made again from its text, which is cut already.
    def __reduce__(self) -> tuple[object, ...]:
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


def _fit(text: str) -> str:
    """Returns the text in at most `_ROWS` rows of a screen; it may quote millions of characters."""
    left, lines = _ROWS, _LONG_WORD.sub(r"\1...\2", printable(text)).split("\n")
    for number, line in enumerate(lines):
        left -= 1 + len(line) // _COLUMNS
        if left < 0:
            room = (left + 1 + len(line) // _COLUMNS) * _COLUMNS
            start = (
                [line[: room - 30] + " ..."] if room else [f"... and {len(lines) - number} more"]
            )
            return "\n".join([*lines[:number], *start])
    return "\n".join(lines)


def nearest(name: str, valid: Iterable[str], *, limit: int = 3) -> str:
    """Returns a hint for a misspelt name: `did you mean 'batch_size'?`, or the valid names."""
    names = sorted(map(printable_line, valid))
    close = difflib.get_close_matches(name, names, n=limit, cutoff=0.6)
    close = close or _with_word(name, names)[:limit]
    if close:
        return "did you mean " + " or ".join(repr(match) for match in close) + "?"
    return f"valid here: {', '.join(names)}" if names else "nothing is valid here: leave it out"


def _with_word(name: str, names: Iterable[str]) -> list[str]:
    """Returns the names with a word that is close, as `mobilenet` in `ssd_mobilenet_v2_coco`."""
    words = {n: [w for w in re.split(r"[\W_]+", n) if len(w) > _SHORT_WORD] for n in names}
    known = sorted({word for parts in words.values() for word in parts})
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return sorted((n for n, parts in words.items() if close and close[0] in parts), key=len)
