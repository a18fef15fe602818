"""Problems of records with their severity and remedy, and how findings are printed."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from stillbox.findings import SEVERITIES, Finding, Severity
from stillbox.printing import count_text
from stillbox.records import example as rules
from stillbox.records.pixels import FEW_VALUES
from stillbox.records.problems import Problem
from stillbox.references import Parameter, Wording, python_words, worded

_CONVERT_AGAIN = "convert the data again; data.bad_boxes=fix does the same at every start"
_OPTIONS = "train with data.bad_records=drop, or write these records again"
IN_FIRST_PIXEL = "box within the first pixel"
"""Never shown: what it means depends on the whole set."""
BELOW_A_PIXEL = "box below one pixel"
DIVIDED_TWICE = "boxes divided by the image size twice"
MOST_BELOW_A_PIXEL = "most boxes are below one pixel"
WHOLE_IMAGE = "box of the whole image"
MANY_WHOLE_IMAGES = "many boxes are of the whole image"
BOX_TWICE = "same box twice"
ONE_BOX = "class with one box"
ONE_COLOUR = "image of one colour"
IMAGE_TWICE = "image twice in a set"
SHARED_IMAGE = "image in two sets"
LONG_ID = "image id of very many characters"
LABELS_FROM_ZERO = "labels begin at 0"
_DARK = "see whether it shows anything; save images of more than 8 bits scaled to 8"
_BAD_BOXES = (rules.INVERTED, rules.OUTSIDE, rules.WHOLLY_OUTSIDE, rules.NO_AREA)
# Every other problem is an error: it stops training, or loses labels silently.
_MILDER: dict[str, tuple[Severity, str]] = {
    **dict.fromkeys((*_BAD_BOXES, rules.NOT_A_NUMBER), ("warning", _CONVERT_AGAIN)),
    "optional column of wrong length": ("warning", "write these records again"),
    "class text and label differ": ("warning", "see that records and label map belong together"),
    "file without a record": ("warning", "remove the file, or write it again"),
    "incomplete set of shards": ("warning", "name all shards, as name@10 or name-?????-of-00010"),
    "size is not the image's": ("warning", "boxes are normalised, so training is not affected"),
    "EXIF orientation": ("warning", "images are used as stored: see that the boxes fit that"),
    "image id occurs twice": ("warning", "see whether an image was written twice"),
    "neither JPEG nor PNG": ("warning", "convert the images; other programs refuse them"),
    "CMYK image": ("warning", "convert the data again with `stillbox data convert`"),
    BELOW_A_PIXEL: ("warning", "see the unit of the coordinates, or remove such boxes"),
    MANY_WHOLE_IMAGES: ("warning", "see the unit: pixels taken for fractions are clipped to that"),
    BOX_TWICE: ("warning", "convert the data again, with each box once"),
    ONE_BOX: ("warning", "see whether the name is misspelt, or add images of the class"),
    IMAGE_TWICE: ("warning", "write one record of each image, with all its boxes"),
    LONG_ID: ("warning", "number the images: each score and each result repeats the id"),
    SHARED_IMAGE: ("warning", "leave it out of one: scores on images of training are too high"),
    FEW_VALUES: ("warning", _DARK),
    ONE_COLOUR: ("warning", _DARK),
    WHOLE_IMAGE: ("note", ""),
    "image without a box": ("note", ""),
    "class without a box": ("note", ""),
}
_FIXES = {
    rules.UNKNOWN_CLASS: "give the label map that belongs to the records, or see use_display_name",
    rules.CLASS_ZERO: "ids begin at 1: write these records again",
    LABELS_FROM_ZERO: rules.COUNT_FROM_ONE,
    DIVIDED_TWICE: "the coordinates were fractions before: convert the data again as such",
    MOST_BELOW_A_PIXEL: "divide pixels by the image size once, and fractions not at all: convert "
    "the data again",
    rules.IN_PIXELS: "divide the coordinates by the image size: convert the data again",
    "class texts need a label map": f"give one with {Parameter('label_map')}",
    "class id above num_classes": "raise model.num_classes to the label map's greatest id, or set "
    "model.class_slots=contiguous",
    "no box in any record": "see that the records hold image/object/bbox lists",
}


@dataclass(frozen=True, kw_only=True)
class RecordFinding(Finding):
    """All cases of one problem of records."""

    outcome: str
    """What reading does about it under the usual policies."""
    count: int
    examples: tuple[str, ...]
    """The first cases: file, record, detail."""


def finding_of(problem: Problem) -> RecordFinding:
    """Returns a problem with its severity and its fix."""
    severity, fix = _MILDER.get(problem.reason, ("error", _FIXES.get(problem.reason, _OPTIONS)))
    return RecordFinding(
        severity=severity,
        path="",
        what=problem.reason,
        fix=fix,
        outcome=problem.action,
        count=problem.count,
        examples=tuple(problem.examples),
    )


_COLOURS: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "note": "cyan"}


def count_severity(findings: Sequence[Finding], severity: Severity) -> int:
    """Returns the number of findings with a severity."""
    return sum(finding.severity == severity for finding in findings)


def render_findings(
    findings: Sequence[Finding],
    *,
    source: str = "",
    most_notes: int | None = None,
    wording: Wording = python_words,
) -> RenderableType:
    """Returns findings as a terminal shows them: place, problem, remedy.

    Args:
        findings: errors first, notes last.
        source: the file that is left out of places, because it is named above.
        most_notes: notes that are shown; None: all.
        wording: how the surface names parameters and settings.
    """
    errors, notes = (count_severity(findings, severity) for severity in ("error", "note"))
    hidden = 0 if most_notes is None else max(notes - most_notes, 0)
    parts: list[RenderableType] = []
    for number, finding in enumerate(findings[: len(findings) - hidden], start=1):
        mark = f"{number}. " if errors > 1 and finding.severity == "error" else ""
        lines = _lines(finding, source, mark, wording)
        parts += [Unbroken(line, 2 + 2 * (place > 0)) for place, line in enumerate(lines)]
    if hidden:
        rest = f"... and {count_text(hidden, 'more note')}; {Parameter('notes')} shows all"
        parts.append(Text(worded(rest, wording), "dim"))
    return Group(*parts)


def render_totals(findings: Sequence[Finding]) -> RenderableType:
    """Returns the numbers of errors, warnings and notes as a terminal shows them."""
    totals = (count_text(count_severity(findings, each), each) for each in SEVERITIES)
    return Text(", ".join(totals))


def _lines(finding: Finding, source: str, mark: str, wording: Wording) -> Iterator[Text]:
    place = worded(finding.where({}), wording).removeprefix(f"{source}:")
    line = f"{place}: {finding.what}" if place else finding.what
    if isinstance(finding, RecordFinding):
        line = f"{finding.count:,} x {line}" + (f" ({finding.outcome})" if finding.outcome else "")
    yield Text.assemble(mark, (finding.severity, _COLOURS[finding.severity]), f" {line}")
    yield from map(Text, finding.examples if isinstance(finding, RecordFinding) else ())
    # The fix of a note is optional, so it is left out.
    if finding.fix and finding.severity != "note":
        yield Text(f"fix: {worded(finding.fix, wording)}", "green")


class Unbroken:
    """An indented text that is broken only between words, so paths and addresses stay whole."""

    def __init__(self, text: Text, indent: int = 0) -> None:
        self._text, self._indent = text, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width - self._indent, 1)
        # Rich would cut what is longer than a line.
        for line in self._text.divide(_breaks(self._text.plain, width)):
            line.rstrip()
            yield Segment(" " * self._indent)
            yield from line.render(console)
            yield Segment.line()


def _breaks(text: str, width: int) -> Iterator[int]:
    """Yields where each line of whole words begins, except the first."""
    start = 0
    for word in re.finditer(r"\S+", text):
        if word.end() - start > width and word.start() > start:
            start = word.start()
            yield start
