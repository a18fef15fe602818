"""How often the classes of a set occur, and which class is rare."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from stillbox.printing import count_text, printable_line

_RARE = 0.1
"""A class is rare with fewer boxes than this share of the median's."""
_SHOWN = 10
"""Rows at both ends of a table of many classes."""


@dataclass(frozen=True)
class ClassCount:
    """How often a class occurs in a set."""

    name: str
    boxes: int
    images: int
    """Images with a box of the class."""


class ClassCounter:
    """Counts the boxes and images of each class."""

    def __init__(self) -> None:
        self.boxes: Counter[int] = Counter()
        self.images: Counter[int] = Counter()

    def add(self, class_ids: Iterable[int]) -> None:
        """Counts an image with boxes of these classes."""
        ids = list(class_ids)
        self.boxes.update(ids)
        self.images.update(set(ids))

    def counts(self, names: Mapping[int, str], times: float = 1.0) -> tuple[ClassCount, ...]:
        """Returns the counts of all classes in the order of the ids, multiplied by a number."""
        return tuple(
            ClassCount(name, round(times * self.boxes[number]), round(times * self.images[number]))
            for number, name in sorted(names.items())
        )


def median_boxes(counts: Iterable[ClassCount]) -> float:
    """Returns the boxes of the median class; classes without a box are left out."""
    return median([count.boxes for count in counts if count.boxes] or [0])


def rare_class(counts: Sequence[ClassCount]) -> ClassCount | None:
    """Returns the class with the fewest boxes if it is rare; one without a box has no images."""
    there = [count for count in counts if count.boxes]
    rarest = min(there, key=lambda count: count.boxes, default=None)
    return rarest if rarest and rarest.boxes < _RARE * median_boxes(there) else None


def describe_rare(counts: Sequence[ClassCount]) -> str:
    """Returns a phrase about the rare class; empty: there is none."""
    rare = rare_class(counts)
    if rare is None:
        return ""
    name, boxes = printable_line(rare.name), count_text(rare.boxes, "box")
    return f"{name} is rare: {boxes}, where the median class has {median_boxes(counts):,.0f}"


def class_table(counts: Sequence[ClassCount]) -> list[str]:
    """Returns a line for each class, below the names of the columns."""
    total = sum(count.boxes for count in counts) or 1
    lines = [
        f"  {count.boxes:11,} {count.images:11,} {100 * count.boxes / total:8.1f} %  "
        f"{printable_line(count.name)}"
        for count in counts
    ]
    return [f"  {'boxes':>11} {'images':>11} {'share':>10}  class", *lines]


def short_table(counts: Sequence[ClassCount]) -> Iterator[str]:
    """Yields the table with the most frequent class first; of many classes both ends."""
    head, *rows = class_table(sorted(counts, key=lambda count: -count.boxes))
    yield head
    if len(rows) > 2 * _SHOWN:
        rows[_SHOWN:-_SHOWN] = [f"  {'...':>11} {len(rows) - 2 * _SHOWN:,} more"]
    yield from rows
