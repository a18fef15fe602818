"""Limits of a program beside a data set, as a terminal, a page and JSON show them.

`limit_audit.audit` makes them: each is proven harmless, or has the objects that it costs and a
remedy.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stillbox.evaluation.html_page import head_row, section, table
from stillbox.printing import html_text, printable_line
from stillbox.references import worded

Size = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One fixed number of a program beside a data set."""

    name: str
    path: str
    """Dotted path of its field; empty: it is no field."""
    value: int | Size
    needed: int | Size
    """Least value that costs no object."""
    lost: int
    """Objects that it costs."""
    objects: int
    """Objects of the data set."""
    classes: Mapping[str, float]
    """Class -> share of its objects that is lost, the largest first; other classes lose none."""
    certain: bool = True
    """False: at most `lost` objects are lost."""
    certain_of_class: bool = True
    """False: at most so large a share of a class is lost."""
    remedy: str = ""
    greatest_ap: float | None = None
    """COCO's AP and AP50 of a detector that finds all that it may; None: not known."""

    @property
    def share(self) -> float:
        """Share of the objects that is lost."""
        return self.lost / max(self.objects, 1)

    def sentence(self) -> str:
        """Returns what the limit is, what is needed, and what it costs."""
        name, value, needed, lost, of_class = _cells(self)
        of_all = f"of {self.objects:,} objects {lost} are lost"
        return f"{name}: {value}, and {needed} are needed; {of_all}, of {of_class}"

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        classes = {name: round(share, 6) for name, share in self.classes.items()}
        plain = {**asdict(self), "classes": classes, "share": round(self.share, 6)}
        return {**plain, "remedy": worded(self.remedy)}


@dataclass(frozen=True, kw_only=True)
class LimitTable:
    """The limits of a program beside one or several sets."""

    rows: tuple[Limit, ...] = ()
    """The most expensive first."""
    read: tuple[str, ...] = ()
    """What was read of each set, such as `9 of 9 images to score on`."""

    @property
    def costly(self) -> list[Limit]:
        """The limits that cost objects."""
        return [row for row in self.rows if row.lost]

    @property
    def harmless(self) -> list[Limit]:
        """The limits that cost none."""
        return [row for row in self.rows if not row.lost]

    def joined(self, other: "LimitTable") -> "LimitTable":
        """Returns a table of both, each limit beside the set that it costs most of."""
        rows: dict[str, Limit] = {}
        for row in (*self.rows, *other.rows):
            before = rows.get(row.name)
            if before is None or (row.share, row.needed) > (before.share, before.needed):
                rows[row.name] = row
        ordered = sorted(rows.values(), key=lambda row: -row.share)
        return LimitTable(rows=tuple(ordered), read=(*self.read, *other.read))

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return {"read": list(self.read), "rows": [row.to_dict() for row in self.rows]}


NO_LIMITS = LimitTable()

_HEADS = ("limit", "is", "needed", "lost", "most of a class")


def limit_lines(limits: LimitTable) -> list[str]:
    """Returns the table as lines of a terminal; limits that cost nothing are one of them."""
    if not limits.read:
        return []
    cells = [_HEADS, *(_cells(row) for row in limits.costly)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [f"limits of an image beside the data ({', '.join(limits.read)}):"]
    if not limits.costly:
        return [f"{lines[0]} {_harmless(limits)}"]
    for number, texts in enumerate(cells):
        padded = [f"{text:{width}}" for text, width in zip(texts, widths, strict=True)]
        lines.append(f"  {'  '.join(padded)}".rstrip())
        if number:
            lines.append(f"    fix: {limits.costly[number - 1].remedy}")
    return [*lines, f"  {_harmless(limits)}"]


def limit_section(limits: LimitTable) -> str:
    """Returns the table as a section of a page; nothing if nothing was compared."""
    rows = []
    for row in limits.costly:
        name, *numbers = (html_text(text) for text in _cells(row))
        columns = "".join(f'<td class="number">{text}</td>' for text in numbers)
        remedy = f"<small>{html_text(row.remedy)}</small>"
        rows.append(f'<tr><th scope="row">{name}{remedy}</th>{columns}</tr>')
    listed = table("", head_row(_HEADS[:1], _HEADS[1:]), rows) if rows else ""
    about = f"Read: {', '.join(limits.read)}; {_harmless(limits)}."
    note = f'<p class="note">{html_text(about)}</p>'
    return section("Limits", listed + note) if limits.read else ""


def _cells(row: Limit) -> tuple[str, ...]:
    share = f"{_at_most(row.certain)}{row.lost:,} ({_percent(row.share)})"
    name, worst = next(iter(row.classes.items()), ("", 0.0))
    of_class = f"{printable_line(name)} {_at_most(row.certain_of_class)}{_percent(worst)}"
    return row.name, _number(row.value), _number(row.needed), share, of_class if name else ""


def _at_most(certain: bool) -> str:
    return "" if certain else "up to "


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _number(value: int | Size) -> str:
    return f"{value:,}" if isinstance(value, int) else "x".join(map(str, value))


def _harmless(limits: LimitTable) -> str:
    names = [f"{row.name} {_number(row.value)}" for row in limits.harmless]
    return f"harmless: {'; '.join(names) or 'none'}"
