"""The effect of a field of a configuration language, found by reading files with and without it.

Nothing is looked up in the reader's tables: two files that differ in one field are read, and the
difference between the two experiments is the effect.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from stillbox.errors import UserError
from stillbox.experiment.reading import Reading
from stillbox.experiment.values import differences

PROBE = "probe"
"""Name of the files that are read; their positions are left out of pages."""
_PATHS_SHOWN = 4


@dataclass
class Effect:
    """The effect of one field, over all values that were tried."""

    honoured: dict[str, None] = field(default_factory=dict)
    """Paths in the experiment that follow the field, in the order of their discovery."""
    ignored: dict[str, None] = field(default_factory=dict)
    """Messages of the reader about values without effect."""
    refused: dict[str, str] = field(default_factory=dict)
    """Value -> reason of its refusal."""
    accepted: set[str] = field(default_factory=set)
    """Values that are not refused."""

    def add(
        self, value: str, before: Reading, after: Reading, paths: Iterable[str], skip: str = "\0"
    ) -> None:
        """Enters a value that is accepted.

        Args:
            value: the value.
            before: the file without it.
            after: the file with it.
            paths: fields of the experiment that differ.
            skip: messages with this text are left out.
        """
        self.accepted.add(value)
        self.honoured |= dict.fromkeys(paths)
        if not paths:
            self.ignored |= dict.fromkeys(m for m in new_messages(before, after) if skip not in m)

    def refuse(self, value: str, error: UserError, label: str) -> None:
        """Enters a value that is refused, with the reason but without the name of the field."""
        shown = re.escape(value.strip(" :"))
        reason = re.sub(
            rf"^{re.escape(label)}( = ({shown}|\S+))?(: | )?", "", error.what.partition("\n")[0]
        )
        self.refused.setdefault(value, reason)

    def word(self) -> str:
        """Returns the effect in a word or two."""
        if self.honoured:
            return "honoured"
        if self.ignored:
            return "no effect"
        assert self.refused, "the reader reads the field and nothing follows from it"
        return "refused"

    def reasons(self) -> Iterator[str]:
        """Yields why accepted values have no effect."""
        for text in self.ignored:
            yield re.sub(r"^.*? (?:has|have) no effect here: ", "", text)

    def refused_by_reason(self) -> dict[str, list[str]]:
        """Returns the refused values by reason."""
        values: dict[str, list[str]] = {}
        for value, reason in self.refused.items():
            values.setdefault(reason, []).append(value)
        return values


def changed_paths(before: Reading, after: Reading) -> list[str]:
    """Returns the paths of all fields in which two experiments differ."""
    return [path for path, _, _ in differences(before.experiment, after.experiment)]


def new_messages(before: Reading, after: Reading) -> list[str]:
    """Returns the notes and warnings of only one of two files, without positions."""
    first, second = (
        [re.sub(rf"{PROBE}(:\d+:\d+)?: ", "", text) for text in (*reading.notes, *reading.warnings)]
        for reading in (before, after)
    )
    without = [f"without it: {text}" for text in first if text not in second]
    return [text for text in second if text not in first] + without


def shorten(paths: Iterable[str]) -> str:
    """Returns a list of paths; a section of another kind stands for all its fields."""
    paths = list(paths)
    kinds = sorted({path.rpartition(".")[0] for path in paths if path.endswith(".kind")})
    shown = dict.fromkeys(
        next((kind for kind in kinds if path.startswith(f"{kind}.")), path) for path in paths
    )
    if len(shown) > _PATHS_SHOWN:
        shown = dict.fromkeys(".".join(path.split(".")[:2]) for path in shown)
    return ", ".join(f"`{path}`" for path in shown)


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """Returns a Markdown table.

    Args:
        head: names of the columns, separated by `|`.
        rows: the cells of each row.
    """
    columns = head.split("|")
    lines = [columns, ["---"] * len(columns), *([c.replace("|", "\\|") for c in r] for r in rows)]
    return "".join(_row(line) for line in lines)


def _row(cells: Iterable[str]) -> str:
    return "|" + "|".join(c if c == "---" else f" {c}".rstrip() + " " for c in cells) + "|\n"
