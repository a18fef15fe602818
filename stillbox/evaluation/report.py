"""The report of an evaluation: its content, tables, self-contained HTML page, and files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from stillbox.evaluation.analysis import KINDS, MEANINGS, Analysis, ShapeGroup
from stillbox.evaluation.coco import NO_TRUTH, SUMMARY_MEANINGS
from stillbox.evaluation.figures_files import FIGURES, fits_matrix, write_figures
from stillbox.evaluation.history import History
from stillbox.evaluation.html_page import (
    bar_cell,
    card_row,
    fact_row,
    head_row,
    html_page,
    note,
    number_cell,
    section,
    table,
)
from stillbox.evaluation.limits import NO_LIMITS, LimitTable, limit_section
from stillbox.evaluation.pictures import Mark, Picture, beside, draw_marks, panels_svg, save_picture
from stillbox.evaluation.runtimes import RuntimeTable, runtime_section
from stillbox.evaluation.scores import OPEN_IMAGES_MEANINGS, VOC_MEANINGS, Scores
from stillbox.printing import count_text, html_text
from stillbox.records.files import write_whole

# matplotlib takes half a second to import. A training imports this module before its first step.
if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class ReportPicture:
    """An image of the report, drawn once for each of its panels."""

    image: Picture
    """`[H, W, 3]` uint8 RGB."""
    panels: Sequence[tuple[str, Sequence[Mark]]]
    """Caption and marks."""
    name: str
    about: str
    """Caption of all."""

    @cached_property
    def picture(self) -> Picture:
        """The panels side by side, `[H, W, 3]` uint8 RGB."""
        drawn = [draw_marks(self.image, marks) for _, marks in self.panels]
        return beside(drawn, [caption for caption, _ in self.panels])


@dataclass(frozen=True, kw_only=True)
class Cutout:
    """A mistake in its surroundings."""

    kind: str
    image: Picture
    """The part of the image, `[H, W, 3]` uint8 RGB."""
    marks: Sequence[Mark]
    """The objects (dashed; the mistaken one in the colour of its class) and the detection, in
    pixels of the part."""
    about: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a report; empty sections are left out."""

    title: str
    scores: Scores
    analysis: Analysis
    subtitle: str = ""
    all_class_metrics: bool = False
    """Show all twelve of COCO's numbers for every class."""
    history: History = field(default_factory=History)
    pictures: Sequence[ReportPicture] = ()
    cutouts: Sequence[Cutout] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    config_text: str = ""
    timings: Mapping[str, str] = field(default_factory=dict)
    """Durations, with units."""
    warnings: Sequence[str] = ()
    limits: LimitTable = NO_LIMITS
    """Limits of the program beside the scored images."""
    runtimes: RuntimeTable | None = None
    """What `stillbox benchmark` has measured, if anything."""
    data_page: str = ""
    """Path of the page of the data's conversion, relative to the report; empty: there is none."""


_NOTHING_CORRECT = "no detection of this class is correct"
# Rows of the table of confusions.
_CONFUSIONS = 30


def score_tables(scores: Scores) -> str:
    """Returns the numbers of the metrics with their meanings."""
    keys = list(SUMMARY_MEANINGS)
    groups = [
        ("Average precision", keys[:6]),
        ("Average recall, mean over IoU .50 to .95", keys[6:]),
        ("Pascal VOC", list(VOC_MEANINGS)),
        ("Open Images", list(OPEN_IMAGES_MEANINGS)),
    ]
    tables = [
        table(caption, None, rows)
        for caption, chosen in groups
        if (rows := [_score_row(scores, key) for key in chosen if key in scores.summary])
    ]
    return f'<div class="columns">{"".join(tables)}</div>'


def _score_row(scores: Scores, key: str) -> str:
    value, about = scores.summary[key], scores.meaning(key)
    if value is None:
        about = f"{about}: {scores.text(key)}"
    return (
        f'<tr><th scope="row">{key}</th>{number_cell(value, why=NO_TRUTH)}'
        f'<td class="about">{html_text(about)}</td></tr>'
    )


def class_table(scores: Scores, analysis: Analysis, *, all_metrics: bool) -> str:
    """Returns the numbers of every class, at its best threshold and over all scores."""
    # The column that a bar illustrates.
    drawn = "AP50" if scores.coco else scores.class_columns[0]
    rows, columns = [], ["AP50", "AP75", "AP", "AR100", "VOC_AP", "OpenImages_AP"]
    # Classes without objects come last.
    for class_id in sorted(analysis.names, key=lambda each: not analysis.per_class[each].truths):
        name = analysis.names[class_id]
        numbers = scores.class_numbers(name, all_metrics=all_metrics)
        columns = [*dict.fromkeys(key for key in (*columns, *numbers) if key in numbers)]
        confidence = analysis.per_class[class_id]
        at_best = confidence.at_best
        cells = [
            *(
                number_cell(count)
                for count in (confidence.truths, confidence.detections, confidence.correct)
            ),
            *(
                number_cell(value, why=_NOTHING_CORRECT)
                for value in (
                    at_best["precision"],
                    at_best["recall"],
                    at_best["F1"],
                    confidence.threshold,
                )
            ),
            *(
                number_cell(numbers[key], why=NO_TRUTH)
                + (bar_cell(numbers[key] or 0) if key == drawn else "")
                for key in columns
            ),
        ]
        rows.append(f'<tr><th scope="row">{html_text(name)}</th>{"".join(cells)}</tr>')
    metrics = [part for key in columns for part in ([key, ""] if key == drawn else [key])]
    counted = ["objects", "detections", "correct", "precision", "recall", "F1", "threshold"]
    return table("", head_row(["class"], [*counted, *metrics]), rows, sortable=True)


def mistake_table(analysis: Analysis) -> str:
    """Returns the kinds of mistakes, the most expensive first."""
    costs, counts = analysis.costs, analysis.mistakes.counts()
    if costs.ap is None:
        return ""
    longest = max(costs.kinds.values()) or 1.0
    rows = []
    for kind in sorted(KINDS, key=lambda kind: (-costs.kinds[kind], -counts[kind])):
        cost = costs.kinds[kind]
        rows.append(
            # The meaning is below the name: a phone would not show a column at the end.
            f'<tr><th scope="row">{kind}<small>{html_text(MEANINGS[kind])}</small></th>'
            f"{number_cell(cost)}{bar_cell(cost / longest)}{number_cell(costs.counts[kind])}"
            f"{number_cell(counts[kind])}</tr>"
        )
    head = head_row(["mistake"], ["costs AP50", "", "over all scores", "above the threshold"])
    both = (
        f"Without any wrong detection AP50 would rise by {costs.false_positives:.3f}; if objects "
        f"that are not found did not count, by {costs.false_negatives:.3f}."
    )
    return table("", head, rows, sortable=True) + f'<p class="note">{both}</p>'


def confusion_table(analysis: Analysis) -> str:
    """Returns the most frequent confusions of two classes."""
    cells = analysis.confusion.between_classes
    totals = analysis.confusion.objects
    names = [analysis.names[class_id] for class_id in analysis.confusion.class_ids]
    rows = []
    for row, column, count in cells[np.argsort(-cells[:, 2], kind="stable")[:_CONFUSIONS]].tolist():
        share = count / int(totals[row])
        rows.append(
            f'<tr><th scope="row">{html_text(names[row])}</th>'
            f"<td>{html_text(names[column])}</td>{number_cell(count)}{number_cell(share)}"
            f"{bar_cell(share)}</tr>"
        )
    if not rows:
        return ""
    head = head_row(["object", "found as"], ["count", "share of the objects", ""])
    caption = "The most frequent confusions" if len(rows) == _CONFUSIONS else "Confusions"
    return table(caption, head, rows, sortable=True)


def shape_tables(scores: Scores, analysis: Analysis) -> str:
    """Returns recall and precision by size and by aspect ratio."""
    summary = scores.summary
    aps = {"small": "APs", "medium": "APm", "large": "APl"} if scores.coco else {}
    groups = {"Size": analysis.shapes.sizes, "Aspect ratio": analysis.shapes.ratios}
    columns = ["objects", "recall", "precision"]
    tables = []
    for caption, parts in groups.items():
        more = ["AP"] if aps and caption == "Size" else []
        rows = [
            _shape_row(name, group, [summary[aps[name]] for _ in more])
            for name, group in parts.items()
        ]
        tables.append(table("", head_row([caption.lower()], [*columns, *more]), rows))
    return f'<div class="columns">{"".join(tables)}</div>'


def _shape_row(name: str, group: ShapeGroup, more: list[float | None]) -> str:
    numbers = group.numbers
    cells = [number_cell(group.truths), number_cell(numbers["recall"], why=NO_TRUTH)]
    cells.append(
        number_cell(numbers["precision"], why="no detections" if group.truths else NO_TRUTH)
    )
    cells += [number_cell(value, why=NO_TRUTH) for value in more]
    return f'<tr><th scope="row" title="{html_text(group.about)}">{name}</th>{"".join(cells)}</tr>'


def fact_tables(groups: Mapping[str, Mapping[str, str]]) -> str:
    """Returns names and values under captions; empty groups are left out."""
    tables = [
        table(caption, None, [fact_row(name, value) for name, value in facts.items()])
        for caption, facts in groups.items()
        if facts
    ]
    return f'<div class="columns">{"".join(tables)}</div>' if tables else ""


_FIGURE_TEXTS = {
    "loss": "Training loss and its parts over steps",
    "average_precision": "Average precision on the evaluation set over steps",
    "learning_rate": "Learning rate over steps",
    "speed": "Images per second over steps",
    "precision_recall": "Precision over recall for every class at IoU .50",
    "confidence": "Precision, recall and F1 of all classes over the least score",
    "reliability": "Share of correct detections over their score",
    "class_f1": "F1 of every class over the least score",
    "sizes": "Objects by size, found and not found",
    "ratios": "Objects by aspect ratio, found and not found",
}


def render_page(report: Report, figures: Mapping[str, str]) -> str:
    """Returns the page; figures are SVG by name, as `report_files` draws them."""
    scores, analysis = report.scores, report.analysis
    classes = class_table(scores, analysis, all_metrics=report.all_class_metrics)
    sections = [
        _cards(scores, analysis),
        section("Worth knowing", _warnings(report.warnings)),
        limit_section(report.limits),
        section("Mistakes", _mistakes(report)),
        section(
            "Classes",
            note(
                "Detections, precision, recall and F1 are about detections with at least the "
                "score of the class's own threshold, which has the highest F1; IoU .50. An object "
                "can have several detections, of which one is correct."
            )
            + classes,
        ),
        section(
            "Confidence",
            _figure_list(figures, ["confidence", "class_f1", "precision_recall", "reliability"]),
        ),
        section("Confusion matrix", _confusion(analysis)),
        section(
            "Sizes and shapes",
            note(f"Recall, precision and figures are of {_above(analysis)}, at IoU .50.")
            + shape_tables(scores, analysis)
            + _figure_list(figures, ["sizes", "ratios"]),
        ),
        section("Scores", score_tables(scores)),
        section(
            "Training",
            _figure_list(figures, ["loss", "average_precision", "learning_rate", "speed"]),
        ),
        runtime_section(report.runtimes) if report.runtimes else "",
        section("Ground truth beside prediction", picture_list(report.pictures)),
        section("Experiment", _experiment(report)),
    ]
    return html_page(report.title, report.subtitle, sections)


def _cards(scores: Scores, analysis: Analysis) -> str:
    shown = ("AP50", "AP", "AR100", *VOC_MEANINGS, *OPEN_IMAGES_MEANINGS)
    keys = [key for key in shown if key in scores.summary]
    cards = [(scores.text(key), f"{key}, {scores.meaning(key)}") for key in keys]
    overall = analysis.overall
    if overall.threshold is not None:
        at_best = overall.at_best
        cards += [
            (f"{at_best['F1']:.3f}", "highest F1, all classes together"),
            (f"{overall.threshold:.3f}", "the score with that F1, the best threshold"),
            (f"{at_best['precision']:.1%}", "precision: detections that are correct"),
            (f"{at_best['recall']:.1%}", "recall: objects that are found"),
        ]
    cards += [(f"{scores.first.images:,}", "images scored")]
    return card_row([*cards, (f"{overall.truths:,}", "objects to find")])


def _warnings(warnings: Sequence[str]) -> str:
    items = "".join(f"<li>{html_text(warning)}</li>" for warning in warnings)
    return items and f'<ul class="warnings">{items}</ul>'


def _above(analysis: Analysis) -> str:
    threshold = analysis.overall.threshold
    if threshold is None:
        return "all detections, none of which is correct"
    return f"detections with a score of at least {threshold:.3f}, the best threshold"


def _mistakes(report: Report) -> str:
    analysis = report.analysis
    listed = mistake_table(analysis)
    if not listed:
        return ""
    costs = analysis.costs.kinds
    parts = [
        note(
            "What each kind costs is the AP50 that would be gained if its mistakes alone were "
            "mended, over all scores: so many as the first count. The second count and the "
            f"examples are of {_above(analysis)}."
        ),
        listed,
    ]
    for kind in sorted(KINDS, key=lambda kind: -costs[kind]):
        shown = [each for each in enumerate(report.cutouts) if each[1].kind == kind]
        if shown:
            figures = "".join(cutout_figure(*each) for each in shown)
            parts.append(
                f"<h3>{kind} <small>{html_text(MEANINGS[kind])}</small></h3>"
                f'<div class="pictures small">{figures}</div>'
            )
    return "".join(parts)


def cutout_figure(number: int, cutout: Cutout) -> str:
    """Returns a cutout with its caption; `number` is unique on the page."""
    # The caption has the names, which would hide the rest of so small a picture.
    key = f"mistake-{number}"
    panel = cutout.about, cutout.marks
    (svg,) = panels_svg(key, cutout.image, [panel], labels=False, longest=400)
    return f"<figure>{svg}<figcaption>{html_text(cutout.about)}</figcaption></figure>"


def _confusion(analysis: Analysis) -> str:
    from stillbox.evaluation import charts

    if not analysis.overall.truths:
        return ""
    explained = note(
        f"At IoU .50, of {_above(analysis)}. Rows are objects, columns what they are found as; a "
        "darker cell has a greater share of its row. Objects are matched within their class first. "
        "The row background has every detection that is left without an object at that IoU, also "
        "a misplaced or double one; the mistake of that name has only those far from any object. "
        f"The column nothing has every object that is left without a detection.{_beside(analysis)}"
    )
    if not fits_matrix(analysis.confusion):
        classes = len(analysis.confusion.class_ids)
        many = note(f"The matrix of {classes:,} classes is not drawn; report.json has its cells.")
        return explained + many + confusion_table(analysis)
    matrix = charts.matrix_svg(analysis.confusion, analysis.names)
    figure = f'<figure class="matrix scroll">{matrix}</figure>'
    return explained + figure + confusion_table(analysis)


def _beside(analysis: Analysis) -> str:
    """Returns a sentence if matrix and mistakes count confused detections differently."""
    matrix = int(analysis.confusion.between_classes[:, 2].sum())
    mistakes = analysis.mistakes.counts()["confused"]
    if matrix == mistakes:
        return ""
    return (
        f" Between classes the matrix counts {count_text(matrix, 'object')}, the mistakes "
        f"{count_text(mistakes, 'confused detection')}: in the matrix an object has one detection "
        "at most, in the mistakes several are confused on one object, and a detection that "
        "overlaps an object of its own class too is misplaced."
    )


def _figure_list(figures: Mapping[str, str], names: Iterable[str]) -> str:
    shown = [
        "<figure>"
        + figures[name].replace("<svg ", f'<svg aria-label="{_FIGURE_TEXTS[name]}" ', 1)
        + "</figure>"
        for name in names
        if name in figures
    ]
    return f'<div class="figures">{"".join(shown)}</div>' if shown else ""


def picture_list(pictures: Sequence[ReportPicture]) -> str:
    """Returns pictures with their names, the panels of each beside each other."""
    shown = []
    for number, picture in enumerate(pictures):
        panels = panels_svg(f"picture-{number}", picture.image, picture.panels)
        figures = "".join(
            f"<figure>{svg}<figcaption>{html_text(caption)}</figcaption></figure>"
            for svg, (caption, _) in zip(panels, picture.panels, strict=True)
        )
        name, about = html_text(picture.name), html_text(picture.about)
        shown.append(f'<h3>{name} <small>{about}</small></h3><div class="figures">{figures}</div>')
    return "".join(shown)


def _experiment(report: Report) -> str:
    body = fact_tables({"Configuration": report.facts, "Time": report.timings})
    if report.data_page:
        address = html_text(quote(report.data_page))
        body = f'<p><a href="{address}">The data as they were converted</a></p>{body}'
    if report.config_text:
        body += (
            "<details><summary>The whole configuration, as YAML</summary>"
            f"<pre>{html_text(report.config_text)}</pre></details>"
        )
    return body


REPORT = "report.html"
REPORT_NAMES = (REPORT, FIGURES, "csv", "curves", "pictures")
"""The files of a report and its folders."""


def write_report(report: Report, directory: str | Path) -> Path:
    """Writes `report.html`, and beside it its figures as JSON, CSV, PNG and JPEG.

    The page needs no other file and is written last.
    """
    from stillbox.evaluation import charts

    directory = Path(directory)
    drawn = {name: figure for name, figure in _draw(report).items() if figure}
    page = render_page(
        report, {name: charts.figure_svg(figure, name) for name, figure in drawn.items()}
    )
    coco = report.scores.coco
    write_figures(report.analysis, directory, coco.calibration if coco else None)
    numbers = {name: f"class {class_id}" for class_id, name in report.analysis.names.items()}
    for name, figure in drawn.items():
        path = directory / "curves" / f"{name}.png"
        write_whole(path, charts.figure_png(figure, numbers), below=directory)
    for number, picture in enumerate(report.pictures, start=1):
        path = directory / "pictures" / f"{number:03d}.jpg"
        save_picture(picture.picture, path, below=directory)
    return write_whole(directory / REPORT, page.encode())


def _draw(report: Report) -> "dict[str, Figure | None]":
    from stillbox.evaluation import charts

    analysis, shapes = report.analysis, report.analysis.shapes
    size = "square root of the area in pixels"
    return {
        "loss": charts.loss_figure(report.history),
        "average_precision": charts.score_figure(report.history),
        "learning_rate": charts.rate_figure(report.history),
        "speed": charts.speed_figure(report.history),
        "precision_recall": charts.precision_recall_figure(report.scores),
        "confidence": charts.confidence_figure(analysis),
        "reliability": charts.reliability_figure(report.scores),
        "class_f1": charts.class_f1_figure(analysis),
        "sizes": charts.histogram_figure(shapes.side, "Objects by size", size),
        "ratios": charts.histogram_figure(
            shapes.ratio, "Objects by aspect ratio", "width divided by height"
        ),
    }
