"""The table of `stillbox benchmark`: runtimes of one model beside each other.

As text, as JSON, and as a section of an HTML page. The measuring is in `exporting/benchmarking`.
"""

import json
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from stillbox.errors import UserError
from stillbox.evaluation.html_page import head_row, number_cell, section, table
from stillbox.experiment.updating import read_section
from stillbox.experiment.values import node_of
from stillbox.printing import count_text, html_text, json_text
from stillbox.untrusted import read_untrusted

FOLDER, BENCHMARK = "benchmark", "benchmark.json"
"""Names of the table's folder in a model directory, and of its file."""
CHECKPOINT = "checkpoint"
"""Name of the row that the others are compared with."""

_VERSION = 1
# A table has some dozen rows.
_MOST_BYTES = 2**22
# Greater than any figure of a machine.
_MOST = 1e18
_FIX = "run `stillbox benchmark` again"

State = Literal["measured", "not installed", "failed"]


@dataclass(frozen=True, kw_only=True)
class RuntimeRow:
    """One runtime with one artefact. Figures are None where nothing was measured."""

    name: str = ""
    """`checkpoint`, a format such as `onnx` or `tflite_int8`, or the folder of an export."""
    runtime: str = ""
    """Program that runs it, with its version once it was measured."""
    state: State = "measured"
    message: str = ""
    """One sentence, where the state is not `measured`: the reason and the remedy."""
    bytes: int | None = None
    """Size of the files that the runtime reads; of a checkpoint: its weights, without the
    optimizer's state."""
    load_seconds: float | None = None
    """From opening the files to the first detections: checks, reading, compiling, one image.
    Imports of Python are left out, and nothing is taken from a cache of compiled programs."""
    memory_bytes: int | None = None
    """What loading and detecting added to the resident memory of the process, at most."""
    p50_ms: float | None = None
    """Median milliseconds from a decoded image to its detections."""
    p99_ms: float | None = None
    resizing_ms: float | None = None
    """The part of the median before the runtime; 0 where the artefact resizes."""
    images_per_second: float | None = None
    """Images over the whole time of the measured ones."""
    runs: int = 0
    """Images that were measured, after the warm-up."""
    scores: dict[str, float | None] = field(default_factory=dict)
    """Metrics by name, as in `Scores.summary`; empty without an evaluation set."""
    compared: int | None = None
    """Detections of the checkpoint that were looked for."""
    found: int | None = None
    """How many of them the artefact has: same class, IoU of at least a half."""
    box_difference: float | None = None
    """Largest difference of a side of those, in pixels of the image."""
    score_difference: float | None = None

    @property
    def figures(self) -> tuple[float, ...]:
        """All numbers that were measured."""
        values = (getattr(self, measure.name) for measure in fields(self))
        return tuple(value for value in values if isinstance(value, int | float))


@dataclass(frozen=True, kw_only=True)
class RuntimeTable:
    """All runtimes of a model."""

    model: str = ""
    """Origin of the weights."""
    images: int = 0
    """Images that detections were computed in, for scores and differences."""
    scored: bool = False
    """Whether these images are an evaluation set."""
    machine: dict[str, str] = field(default_factory=dict)
    """Conditions by name: processor, threads, date, versions."""
    min_score: float = 0.0
    """Least score of the detections of the checkpoint that are looked for."""
    rows: tuple[RuntimeRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def metric(self) -> str:
        """Name of the metric that the table shows; empty if nothing was scored."""
        return next((next(iter(row.scores)) for row in self.rows if row.scores), "")

    @property
    def conditions(self) -> str:
        """The conditions in one line."""
        return "; ".join(f"{name} {value}" for name, value in self.machine.items())

    def to_json(self) -> str:
        """Returns the table as JSON that `read_runtimes` reads."""
        return json_text({"version": _VERSION, **asdict(self)}) + "\n"

    def render(self) -> str:
        """Returns conditions, table and notes as text."""
        head, notes = map(_wrapped, ((self.model, self.conditions), self.remarks()))
        return "\n".join([*head, "", *_lines(self), "", *notes])

    def remarks(self) -> Iterator[str]:
        """Yields what the columns mean, and the notes."""
        yield (
            "load: from opening the files to the first detections, without imports of Python and "
            "without cached programs; p50, p99: from a decoded image to its detections, batch 1; "
            "memory: what loading and detecting added to the process"
        )
        if any(row.compared is not None for row in self.rows):
            of = count_text(self.images, "scored image" if self.scored else "image")
            yield (
                f"found: detections of the checkpoint in {of} with a score of at least "
                f"{self.min_score:g} that the artefact has too (same class, IoU of at least .5); "
                "box, score: the largest differences of these, in pixels of the image and of scores"
            )
        yield from self.notes


def _wrapped(texts: Iterable[str]) -> Iterator[str]:
    return (line for text in texts for line in textwrap.wrap(text, 100))


# The column AP has the name of the metric, and is left out if nothing was scored.
_HEADS = ("size", "load", "p50 ms", "p99 ms", "images/s", "AP", "found", "box", "score", "memory")


def _lines(content: RuntimeTable) -> Iterator[str]:
    """Yields the head and the rows in columns; a row without figures has its reason in place."""
    cells = [_cells(row, content.metric) for row in content.rows]
    heads = [content.metric if head == "AP" else head for head in _HEADS]
    columns = [[head, *(row[head] for row in cells)] for head in heads if head]
    starts = [
        ["artefact", *(row.name for row in content.rows)],
        ["runtime", *(row.runtime for row in content.rows)],
    ]
    for number, row in enumerate((None, *content.rows)):
        start = "  ".join(f"{column[number]:{max(map(len, column))}}" for column in starts)
        if row is None or row.state == "measured":
            yield "  ".join(
                [start, *(f"{column[number]:>{max(map(len, column))}}" for column in columns)]
            )
        else:
            yield f"{start}  {_reason(row)}"


def _cells(row: RuntimeRow, metric: str) -> dict[str, str]:
    return {
        "size": _text(row.bytes, 1e-6, ".1f", " MB"),
        "load": _text(row.load_seconds, 1, ".2f", " s"),
        "p50 ms": _text(row.p50_ms, 1, ".2f"),
        "p99 ms": _text(row.p99_ms, 1, ".2f"),
        "images/s": _text(row.images_per_second, 1, ".1f"),
        metric: _text(row.scores.get(metric), 1, ".4f"),
        "found": "-" if row.compared is None else f"{row.found}/{row.compared}",
        "box": _text(row.box_difference, 1, ".2g"),
        "score": _text(row.score_difference, 1, ".2g"),
        "memory": _text(row.memory_bytes, 1e-6, ".0f", " MB"),
    }


def _text(value: float | None, scale: float, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value * scale:{form}}{unit}"


def _reason(row: RuntimeRow) -> str:
    return f"{row.state}: {row.message}"


def read_runtimes(path: Path) -> RuntimeTable:
    """Reads what `RuntimeTable.to_json` wrote; the file may come from somebody else.

    Raises:
        UserError: there is no such file, or a field has no sensible value.
    """
    try:
        content = json.loads(read_untrusted(path, most=_MOST_BYTES, inside=path.parent))
        version, machine = content.pop("version"), content.pop("machine")
        rows = tuple(_row(row, str(path)) for row in content.pop("rows"))
        if version != _VERSION or not all(isinstance(value, str) for value in machine.values()):
            raise _damaged(str(path))
        read: RuntimeTable = read_section(RuntimeTable(), node_of(content, str(path)), "")
    except UserError:
        raise
    # The file is no JSON, is too deep, has other types or lacks one of these names.
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(str(path)) from error
    return replace(read, rows=rows, machine=machine)


def find_runtimes(directory: Path, say: Callable[[str], None]) -> RuntimeTable | None:
    """Returns the table in a model directory; None if there is none, or one that is damaged.

    `say` is called with the reason why a table is left out.
    """
    path = directory / FOLDER / BENCHMARK
    if not os.path.lexists(path):
        return None
    try:
        return read_runtimes(path)
    except UserError as error:
        say(f"warning: {path}: left out of the report: {error.what}")
        return None


def _row(content: dict[str, object], where: str) -> RuntimeRow:
    scores = content.pop("scores")
    if not isinstance(scores, dict):
        raise _damaged(where)
    row: RuntimeRow = read_section(RuntimeRow(), node_of(content, where), "rows")
    row = replace(row, scores=scores)
    figures = (*row.figures, *(value for value in scores.values() if value is not None))
    if not all(isinstance(figure, int | float) and abs(figure) <= _MOST for figure in figures):
        raise _damaged(where)
    return row


def _damaged(where: str) -> UserError:
    return UserError("this is no table of this version, or a damaged one", where=where, fix=_FIX)


def runtime_section(content: RuntimeTable) -> str:
    """Returns the section of a page; empty without rows."""
    measured = [row for row in content.rows if row.state == "measured"]
    others = [row for row in content.rows if row.state != "measured"]
    body = _table(measured, content.metric) if measured else ""
    if others:
        items = (f"{row.name} in {row.runtime}: {_reason(row)}" for row in others)
        body += (
            f'<ul class="warnings">{"".join(f"<li>{html_text(item)}</li>" for item in items)}</ul>'
        )
    if not body:
        return ""
    remarks = (f"Measured with {content.model}; {content.conditions}.", *content.remarks())
    notes = "".join(f'<p class="note">{html_text(remark)}</p>' for remark in remarks)
    return section("Runtimes", body + notes)


def _table(rows: Sequence[RuntimeRow], metric: str) -> str:
    numbers = ["size, MB", "load, s", "p50, ms", "p99, ms", "images/s"]
    numbers += [*filter(None, [metric]), "found", "box, px", "score", "memory, MB"]
    head = head_row(["artefact", "runtime"], numbers)
    return table("", head, [_html_row(row, metric) for row in rows], sortable=True)


def _html_row(row: RuntimeRow, metric: str) -> str:
    why = "not measured"
    texts = _cells(row, metric)
    cells = [
        number_cell(_scaled(row.bytes), 1, why=why),
        number_cell(row.load_seconds, 2, why=why),
        number_cell(row.p50_ms, 2, why=why),
        number_cell(row.p99_ms, 2, why=why),
        number_cell(row.images_per_second, 1, why=why),
        *([number_cell(row.scores.get(metric), 4, why=why)] if metric else []),
        # Of any magnitude, in two digits.
        *(f'<td class="number">{texts[head]}</td>' for head in ("found", "box", "score")),
        number_cell(_scaled(row.memory_bytes), 0, why=why),
    ]
    start = f'<th scope="row">{html_text(row.name)}</th><td>{html_text(row.runtime)}</td>'
    return f"<tr>{start}{''.join(cells)}</tr>"


def _scaled(nbytes: int | None) -> float | None:
    return None if nbytes is None else nbytes / 1e6
