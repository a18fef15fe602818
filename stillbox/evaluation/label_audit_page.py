"""The page and the table of suspicious labels."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from stillbox.evaluation.drawing import class_color
from stillbox.evaluation.evaluator import EvaluationResult
from stillbox.evaluation.figures_files import SIDES, CsvRow
from stillbox.evaluation.gallery import window_around, within
from stillbox.evaluation.ground_truth import TruthSource
from stillbox.evaluation.html_page import (
    card_row,
    head_row,
    html_page,
    note,
    number_cell,
    section,
    table,
)
from stillbox.evaluation.label_audit import FAULTS, MEANINGS, Box, Suspicion
from stillbox.evaluation.pictures import Mark, truth_marks
from stillbox.evaluation.report import Cutout, cutout_figure
from stillbox.inputs.decode import decode_image
from stillbox.printing import html_text

_OTHER_COLOR = (255, 255, 255)
_DRAWN = "Labels are dashed, the suggestion is solid."


def draw_suspicions(
    suspicions: Iterable[Suspicion], evaluation: EvaluationResult, source: TruthSource
) -> Iterator[Cutout]:
    """Yields each suspicion in its surroundings: labels dashed, the suggestion solid."""
    names = evaluation.class_names
    places = {truth.image_id: place for place, truth in enumerate(evaluation.truths)}
    for each in suspicions:
        place = places[each.image_id]
        example = source.example(evaluation.records[place])
        if example is None:
            continue
        image, truth = decode_image(example.encoded), evaluation.truths[place]
        boxes = [box.sides for box in (each.label, each.suggestion) if box is not None]
        window = window_around(np.array(boxes), image.shape[:2])
        top, left, bottom, right = window
        others = truth_marks(truth, names, color=_OTHER_COLOR)
        marks = [
            Mark(box=within(np.array(mark.box), window), text="", color=mark.color, dashed=True)
            for place, mark in enumerate(others)
            if place != each.label_index
        ]
        marks += _marks(each, names, window)
        part = np.ascontiguousarray(image[top:bottom, left:right])
        yield Cutout(kind=each.fault, image=part, marks=marks, about=about(each, names))


def _marks(
    suspicion: Suspicion, names: Mapping[int, str], window: tuple[int, int, int, int]
) -> list[Mark]:
    return [
        Mark(
            box=within(np.array(box.sides), window),
            text=names[box.class_id],
            color=class_color(box.class_id),
            dashed=is_label,
        )
        for box, is_label in ((suspicion.label, True), (suspicion.suggestion, False))
        if box is not None
    ]


def about(suspicion: Suspicion, names: Mapping[int, str]) -> str:
    """Returns label, suggestion, sureness and image in a line."""
    texts = {
        "missing": f"{_name(suspicion.suggestion, names)} without a label",
        "spurious": f"{_name(suspicion.label, names)} without an object",
        "wrong class": f"{_name(suspicion.label, names)} is {_name(suspicion.suggestion, names)}",
        "badly placed": f"{_name(suspicion.label, names)} lies elsewhere",
    }
    return f"{texts[suspicion.fault]}, {suspicion.sureness:.2f}, image {suspicion.image_id}"


def _name(box: Box | None, names: Mapping[int, str]) -> str:
    return "" if box is None else names[box.class_id]


def audit_page(
    suspicions: Sequence[Suspicion],
    cutouts: Sequence[Cutout],
    names: Mapping[int, str],
    subtitle: str,
) -> str:
    """Returns the page of the surest suspicions."""
    counted = [(f"{sum(each.fault == fault for each in suspicions):,}", fault) for fault in FAULTS]
    numbered = list(enumerate(cutouts))
    sections = [card_row(counted)]
    for fault in FAULTS:
        figures = [cutout_figure(*each) for each in numbered if each[1].kind == fault]
        if figures:
            shown = f'<div class="pictures small">{"".join(figures)}</div>'
            explained = (
                f"{MEANINGS[fault].capitalize()}. Labels are dashed, the suggestion is solid."
            )
            sections.append(section(fault.capitalize(), note(explained) + shown))
    sections.append(section("All of them", _table(suspicions, names)))
    return html_page("Labels that are probably wrong", subtitle, sections)


def _table(suspicions: Sequence[Suspicion], names: Mapping[int, str]) -> str:
    rows = [
        f'<tr><th scope="row">{each.fault}</th><td>{html_text(each.image_id)}</td>'
        f"<td>{html_text(_name(each.label, names))}</td>"
        f"<td>{html_text(_name(each.suggestion, names))}</td>{number_cell(each.sureness)}</tr>"
        for each in suspicions
    ]
    columns = ["fault", "image", "label", "suggestion"]
    return table("", head_row(columns, ["sureness"]), rows, sortable=True)


def audit_rows(suspicions: Iterable[Suspicion], names: Mapping[int, str]) -> Iterator[CsvRow]:
    """Yields the rows of the table as CSV, with the boxes in pixels."""
    suggested = [f"suggested_{side}" for side in SIDES]
    yield ("sureness", "fault", "image", "label", *SIDES, "suggestion", *suggested)
    for each in suspicions:
        boxes = [
            (_name(box, names), *(np.round(box.sides, 2).tolist() if box else [""] * 4))
            for box in (each.label, each.suggestion)
        ]
        yield (round(each.sureness, 6), each.fault, each.image_id, *boxes[0], *boxes[1])
