"""The one exception that a person is meant to read: what is wrong, where, and how to mend it."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something that the user gave us cannot be used.

    The command line prints it without a traceback and leaves with exit code 2.

    Args:
        what: what is wrong, one sentence.
        where: file:line:column, record number, or option that holds it.
        fix: how to mend it.
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(
            "".join([f"{where}: " if where else "", what, f"\n  fix: {fix}" if fix else ""])
        )


def nearest(name: str, valid: Iterable[str], *, limit: int = 3) -> str:
    """Returns a phrase that leads from a misspelt `name` to the valid ones.

    `did you mean 'batch_size'?` where something is close, otherwise the list of what there is.
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=limit, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(repr(match) for match in close) + "?"
    return "valid here: " + (", ".join(names) if names else "nothing")
