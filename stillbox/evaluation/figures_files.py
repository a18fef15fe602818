"""The figures of a report as JSON and CSV."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from stillbox.evaluation.analysis import KINDS, MISSED, Analysis, Histogram, ShapeGroup
from stillbox.evaluation.calibration import Calibration
from stillbox.evaluation.matching import IOU, Confidence, Confusion
from stillbox.evaluation.results import FloatArray
from stillbox.printing import json_text
from stillbox.records.files import write_whole

FIGURES = "report.json"

_MOST_IN_MATRIX = 1000

SIDES = ("ymin", "xmin", "ymax", "xmax")
_FORMULA = re.compile("[\t\r\n]|\\s*[=+@\uff1d\uff0b\uff20\uff0d-]")
CsvRow = Sequence[object]


def write_figures(
    analysis: Analysis, directory: Path, calibration: Calibration | None = None
) -> None:
    """Writes `report.json`, and a file in `csv` for each table of the analysis.

    The calibration is known where COCO's metrics are computed.

    Raises:
        UserError: the folder cannot be written to.
    """
    scored = {"calibration": None if calibration is None else asdict(calibration)}
    content = json_text(figures(analysis) | scored, indent=1)
    write_whole(directory / FIGURES, content.encode())
    tables = {
        "classes": _classes(analysis),
        "confidence": _curves(analysis),
        "confusion": _confusion(analysis),
        "mistakes": _mistakes(analysis),
        "sizes": _sizes(analysis),
    }
    for name, rows in tables.items():
        write_whole(directory / "csv" / f"{name}.csv", csv_bytes(rows), below=directory)


def figures(analysis: Analysis) -> dict[str, Any]:
    """Returns all figures as objects of JSON; `None`: there is no such number."""
    counts, shapes = analysis.mistakes.counts(), analysis.shapes
    confusion = analysis.confusion
    return {
        "iou": IOU,
        "threshold": analysis.overall.threshold,
        "all_classes": _numbers(analysis.overall) | {"curve": _curve(analysis.overall)},
        "per_class": {
            analysis.names[class_id]: {
                "id": class_id,
                **_numbers(confidence),
                "curve": _curve(confidence) if confidence.occurs else None,
            }
            for class_id, confidence in analysis.per_class.items()
        },
        "confusion": {
            "classes": [*_confused_names(analysis), None],
            "counts": confusion.counts.tolist() if fits_matrix(confusion) else None,
            "cells": confusion.cells.tolist(),
        },
        "mistakes": {
            kind: {
                "count": counts[kind],
                "count_over_all_scores": analysis.costs.counts[kind],
                "cost": analysis.costs.kinds[kind],
            }
            for kind in KINDS
        },
        "AP50": analysis.costs.ap,
        "cost_of_false_positives": analysis.costs.false_positives,
        "cost_of_false_negatives": analysis.costs.false_negatives,
        "sizes": {name: _group(group) for name, group in shapes.sizes.items()},
        "ratios": {name: _group(group) for name, group in shapes.ratios.items()},
        "histograms": {
            "square_root_of_area": _histogram(shapes.side),
            "width_by_height": _histogram(shapes.ratio),
        },
    }


def _numbers(confidence: Confidence) -> dict[str, float | None]:
    return {
        "objects": confidence.truths,
        "threshold": confidence.threshold,
        "found": confidence.detections,
        "correct": confidence.correct,
        **confidence.at_best,
    }


def _curve(confidence: Confidence) -> dict[str, list[float | None]]:
    columns = {
        "score": confidence.levels,
        "precision": confidence.precision,
        "recall": confidence.recall,
        "F1": confidence.f1,
    }
    return {name: _finite(values) for name, values in columns.items()}


def _finite(values: FloatArray) -> list[float | None]:
    return [round(value, 6) if np.isfinite(value) else None for value in values.tolist()]


def _group(group: ShapeGroup) -> dict[str, float | None]:
    return {
        "objects": group.truths,
        "objects_found": group.correct,
        "found": group.detections,
        **group.numbers,
    }


def _histogram(histogram: Histogram) -> dict[str, list[float | None] | list[int]]:
    return {
        "edges": _finite(histogram.edges),
        "objects_found": histogram.correct.tolist(),
        "objects_missed": histogram.missed.tolist(),
    }


def csv_bytes(rows: Iterable[CsvRow]) -> bytes:
    """Returns rows as CSV that spreadsheets do not evaluate."""
    buffer = io.StringIO(newline="")
    # Quoted, since spreadsheets of some languages divide a line at semicolons.
    writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([_inert(cell) for cell in row] for row in rows)
    return buffer.getvalue().encode()


def _inert(cell: object) -> object:
    """Returns a cell that spreadsheets do not evaluate, after OWASP, "CSV Injection"."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _classes(analysis: Analysis) -> Iterator[CsvRow]:
    yield ("class", "id", *_numbers(analysis.overall))
    for class_id, confidence in analysis.per_class.items():
        yield (analysis.names[class_id], class_id, *_numbers(confidence).values())


def _curves(analysis: Analysis) -> Iterator[CsvRow]:
    yield "class", "score", "precision", "recall", "F1"
    every = [
        (analysis.names[i], confidence)
        for i, confidence in analysis.per_class.items()
        if confidence.occurs
    ]
    for name, confidence in [("", analysis.overall), *every]:
        for row in zip(*_curve(confidence).values(), strict=True):
            yield (name, *row)


def fits_matrix(confusion: Confusion) -> bool:
    """Returns whether the whole matrix is written; beyond, it is too large and nearly empty."""
    return len(confusion.class_ids) <= _MOST_IN_MATRIX


def _confused_names(analysis: Analysis) -> list[str]:
    return [analysis.names[class_id] for class_id in analysis.confusion.class_ids]


def _confusion(analysis: Analysis) -> Iterator[CsvRow]:
    names, confusion = _confused_names(analysis), analysis.confusion
    rows, columns = [*names, "background"], [*names, "missed"]
    if not fits_matrix(confusion):
        yield "object", "detection", "count"
        for row, column, count in confusion.cells.tolist():
            yield rows[row], columns[column], count
        return
    yield ("object", *columns)
    for name, counts in zip(rows, confusion.counts, strict=True):
        yield (name, *counts.tolist())


def _mistakes(analysis: Analysis) -> Iterator[CsvRow]:
    """Yields a row for each mistake, those with the highest scores first, missed objects last."""
    object_sides = [f"object_{side}" for side in SIDES]
    yield "kind", "image", "class", "score", *SIDES, "object_class", *object_sides
    shown, mistakes, names = analysis.shown, analysis.mistakes, analysis.names
    truth_boxes = np.round(shown.truth_boxes, 2)
    nothing = ["", "", "", "", ""]

    def of_truth(truth: int) -> CsvRow:
        return (names[int(shown.truth_class[truth])], *truth_boxes[truth].tolist())

    for detection in np.flatnonzero(mistakes.kind >= 0).tolist():
        truth = int(mistakes.truth[detection])
        yield (
            KINDS[mistakes.kind[detection]],
            analysis.image_ids[shown.image[detection]],
            names[int(shown.class_ids[detection])],
            round(float(shown.scores[detection]), 6),
            *np.round(shown.boxes[detection], 2).tolist(),
            *(of_truth(truth) if truth >= 0 else nothing),
        )
    for truth in mistakes.missed.tolist():
        image = analysis.image_ids[shown.truth_image[truth]]
        yield (KINDS[MISSED], image, "", "", *nothing[1:], *of_truth(truth))


def _sizes(analysis: Analysis) -> Iterator[CsvRow]:
    groups = {**analysis.shapes.sizes, **analysis.shapes.ratios}
    yield ("group", "meaning", *_group(next(iter(groups.values()))))
    for name, group in groups.items():
        yield (name, group.about, *_group(group).values())
