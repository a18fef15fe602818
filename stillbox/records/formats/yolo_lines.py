"""The lines of YOLO's label files, and the meaning of their columns.

`class x y width height` is a box, `class x1 y1 x2 y2 ...` an outline. Other programs write more
columns: a confidence, a confidence and the number of a track, or keypoints with and without
visibility. A line with seven columns can be an outline of three points or a box with two numbers
behind it. All lines of the set decide.

Source: docs.ultralytics.com, "Datasets" for detection, segmentation, oriented boxes and poses, and
`ultralytics/engine/results.py`, `save_txt`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from statistics import median
from typing import NamedTuple

from stillbox.errors import UserError
from stillbox.printing import count_text, printable_line
from stillbox.records.foreign_files import decode_text, number
from stillbox.records.shapes import NO_BOX, Box, bounds

BOX_COLUMNS = 5
_FEWEST_OUTLINE = 7
_ROTATED = 9
_MOST_CLASSES = 2**53
_SEPARATORS = re.compile(r"[\s,;]+")
_PLAIN = re.compile(r"[0-9.eE+\s-]*")
_DECIMAL_COMMAS = re.compile(r"\S+(\s+-?\d*,\d+)+")


class Line(NamedTuple):
    """A line with its two readings."""

    number: int
    class_index: int
    columns: int
    box: Box
    """The first four numbers as centre and size."""
    outline: Box
    """The box around all numbers as points."""


@dataclass
class LabelFile:
    """The lines of a label file."""

    lines: list[Line] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    """Number and text of the lines that are not numbers."""


def parse_labels(data: bytes, columns: "Columns") -> LabelFile:
    """Returns the lines of a label file, which `columns` counts.

    Raises:
        UnicodeDecodeError: it is no text.
    """
    labels = LabelFile()
    for line_number, text in enumerate(decode_text(data).splitlines(), start=1):
        values = _numbers(text)
        if len(values) < BOX_COLUMNS or not is_class(values[0]) or not isfinite(sum(values)):
            if text.strip():
                labels.bad.append((line_number, text))
            continue
        line = _line(line_number, values)
        labels.lines.append(line)
        columns.add(values, line)
    return labels


def _numbers(text: str) -> list[float]:
    # Millions of lines are as YOLO writes them, and quick to read.
    if _PLAIN.fullmatch(text):
        with suppress(ValueError):
            return [float(word) for word in text.split()]
    return [number(word) for word in split_words(text)]


def split_words(text: str) -> list[str]:
    """Returns the words of a line, between blanks, commas or semicolons."""
    text = text.strip()
    if _DECIMAL_COMMAS.fullmatch(text):
        return text.split()
    return [word for word in _SEPARATORS.split(text) if word]


def is_class(value: float) -> bool:
    """Tells whether a number can be a class, which some programs write as `0.0`."""
    return 0 <= value < _MOST_CLASSES and value == int(value)


def _line(line_number: int, values: Sequence[float]) -> Line:
    _, x, y, width, height = values[:5]
    box = (y - height / 2, x - width / 2, y + height / 2, x + width / 2)
    around = NO_BOX
    if len(values) >= _FEWEST_OUTLINE and len(values) % 2:
        around = bounds(list(zip(values[1::2], values[2::2], strict=True)))
    return Line(line_number, int(values[0]), len(values), box, around)


@dataclass
class _Group:
    """What the lines with one number of columns have in common."""

    lines: int = 0
    shares: int = 0
    """Lines with a fraction in the sixth column, as a confidence is."""
    whole: int = 0
    """Lines with a whole number in the seventh column, as the number of a track is."""
    parallel: int = 0
    """Lines with four points that form a parallelogram."""
    visible: int = 0
    """Lines with 0, 1 or 2 in each third column behind the box."""
    within: int = 0
    """Lines with all points behind the box inside of it."""
    inside: int = 0
    """Lines with a box inside the image."""
    filled: list[float] = field(default_factory=list)
    """Part of the box that these points reach."""


class Columns:
    """Counts the columns of all lines, and tells what they mean."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = defaultdict(_Group)

    def add(self, values: Sequence[float], line: Line) -> None:
        """Counts a line with its numbers."""
        group = self._groups[line.columns]
        group.lines += 1
        if line.columns == BOX_COLUMNS:
            return
        rest = values[5:]
        group.shares += 0 <= rest[0] <= 1
        group.whole += len(rest) == 2 and rest[1] == int(rest[1])
        group.parallel += line.columns == _ROTATED and _is_parallelogram(values[1:])
        group.visible += len(rest) % 3 == 0 and set(rest[2::3]) <= {0, 1, 2}
        group.inside += min(line.box) >= 0 and max(line.box) <= 1
        if len(rest) % 2 == 0:
            group.within += _add_points(rest, line.box, group.filled)

    def meanings(self) -> Mapping[int, str]:
        """Returns what the columns behind the box are, by the number of columns.

        It is nothing for a box, `outline` for points, and a phrase for columns that are passed
        over.

        Raises:
            UserError: lines have numbers of columns that mean nothing.
        """
        groups = self._groups
        alone = len(groups) == 1
        total = sum(group.lines for group in groups.values())
        phrases: dict[int, str] = {}
        for columns, group in groups.items():
            tracked = group.whole == group.lines and groups.keys() <= {5, 6, 7}
            if columns == BOX_COLUMNS:
                phrases[columns] = ""
            elif columns == 6 and group.shares == group.lines and (alone or self._all_boxes()):
                phrases[columns] = "column 6 is a confidence"
            elif columns == 7 and tracked:
                phrases[columns] = "columns 6 and 7 are a confidence and a track"
            elif alone and (phrase := _keypoints(columns, group)):
                phrases[columns] = phrase
            elif columns % 2 and not (alone and columns == 7 and group.inside == group.lines):
                phrases[columns] = "outline"
            elif alone or group.lines > _FEW_LINES * total:
                raise self._unknown()
        return phrases

    def _all_boxes(self) -> bool:
        """Tells whether there are no outlines: some lines of a tracker have no track."""
        seventh = self._groups.get(7, _Group())
        return self._groups.keys() <= {6, 7} and seventh.whole == seventh.lines

    def _unknown(self) -> UserError:
        counts = ", ".join(
            f"{count_text(group.lines, 'line')} of {columns} columns"
            for columns, group in sorted(self._groups.items())[:8]
        )
        return UserError(
            f"the label files have {counts}: a box has 5 columns (class x y width height), an "
            "outline 7, 9, 11, ... (class x1 y1 x2 y2 ...)",
            fix="cut the other columns off, or export the data set as detection",
        )


_FEW_LINES = 0.01
"""Share of lines that are dropped one by one; more stop the conversion."""
_NEARLY_ALL = 0.95
_FILLED = 0.3
"""Keypoints reach at least this part of their box, in half of the lines."""


def _keypoints(columns: int, group: _Group) -> str:
    """Returns what keypoints are behind the box, or nothing."""
    if columns > 7 and (columns - BOX_COLUMNS) % 3 == 0 and group.visible == group.lines:
        return f"columns 6 to {columns} are keypoints with visibility"
    if columns < _ROTATED or not group.filled:
        return ""
    is_rotated = columns == _ROTATED and group.parallel > _NEARLY_ALL * group.lines
    fits = group.within >= _NEARLY_ALL * group.lines and median(group.filled) >= _FILLED
    return f"columns 6 to {columns} are keypoints" if fits and not is_rotated else ""


def _is_parallelogram(points: Sequence[float]) -> bool:
    ax, ay, bx, by, cx, cy, dx, dy = points
    side = max(abs(ax - cx), abs(ay - cy), abs(bx - dx), abs(by - dy))
    return max(abs(ax - bx + cx - dx), abs(ay - by + cy - dy)) <= 0.02 * side + 1e-4


def _add_points(values: Sequence[float], box: Box, filled: list[float]) -> bool:
    """Tells whether points that are not 0, 0 lie in a box; adds the part of it that they reach."""
    points = [(x, y) for x, y in zip(values[::2], values[1::2], strict=True) if x or y]
    ymin, xmin, ymax, xmax = box
    if len(points) < 2 or not (ymax > ymin and xmax > xmin):
        return False
    v0, u0, v1, u1 = bounds(points)
    filled.append(max((v1 - v0) / (ymax - ymin), (u1 - u0) / (xmax - xmin)))
    return min(v0 - ymin, u0 - xmin, ymax - v1, xmax - u1) >= -_SLACK


_SLACK = 0.01


def check_class_numbers(used: Counter[int], names: Sequence[str]) -> None:
    """Refuses class numbers that begin at 1 while names begin at 0.

    Raises:
        UserError: all numbers are one too high.
    """
    if names and used and min(used) == 1 and max(used) == len(names):
        raise UserError(
            f"the classes of the label files are 1 to {max(used)}, and the {len(names)} names have "
            f"the numbers 0 to {max(used) - 1}",
            fix="subtract 1 from the numbers of the label files, or put a name for 0 in front",
        )


def shown_line(text: str) -> str:
    """Returns a line for a message."""
    return repr(printable_line(text.strip()[:80]))


def classes_of(files: Iterable[LabelFile]) -> Counter[int]:
    """Returns how often each class number occurs."""
    return Counter(line.class_index for file in files for line in file.lines)
