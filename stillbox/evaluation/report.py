"""The report of an evaluation: one self-contained HTML page."""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stillbox.evaluation import curves
from stillbox.evaluation.coco import NO_TRUTH, SUMMARY_MEANINGS, ClassScores
from stillbox.evaluation.history import History
from stillbox.evaluation.html_page import bar_cell, card_row, fact_row, html_page, section, table
from stillbox.evaluation.pictures import Picture, picture_bytes, save_picture
from stillbox.evaluation.scores import VOC_MEANINGS, Scores
from stillbox.evaluation.voc import VocClassScores
from stillbox.records.files import write_whole

REPORT = "report.html"
"""Name of the page in its folder."""


@dataclass(frozen=True, kw_only=True)
class ReportPicture:
    """A picture of the report."""

    picture: Picture
    """`[H, W, 3]` uint8 RGB."""
    name: str
    about: str
    """Caption and alternative text."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a report; empty sections are left out."""

    title: str
    scores: Scores
    subtitle: str = ""
    all_class_metrics: bool = False
    """Show all twelve of COCO's numbers for every class."""
    history: History = field(default_factory=History)
    pictures: Sequence[ReportPicture] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """The experiment in a few lines."""
    config_text: str = ""
    """The whole experiment, as YAML."""
    timings: Mapping[str, str] = field(default_factory=dict)
    """Durations, with units."""
    warnings: Sequence[str] = ()


def write_report(report: Report, directory: str | Path) -> Path:
    """Writes `report.html`, and its curves and pictures as separate files, which it does not need.

    Returns:
        The path of the page.
    """
    directory = Path(directory)
    drawn = {
        "loss": curves.loss_figure(report.history),
        "average_precision": curves.score_figure(report.history),
        "learning_rate": curves.rate_figure(report.history),
        "precision_recall": curves.precision_recall_figure(report.scores),
    }
    figures = {name: curves.figure_png(figure) for name, figure in drawn.items() if figure}
    for name, png in figures.items():
        write_whole(directory / "curves" / f"{name}.png", png)
    for number, picture in enumerate(report.pictures, start=1):
        save_picture(picture.picture, directory / "pictures" / f"{number:03d}.jpg")
    return write_whole(directory / REPORT, _render(report, figures).encode())


def _render(report: Report, figures: Mapping[str, bytes]) -> str:
    """Returns the page; figures are PNG files by the names of `_FIGURE_TEXTS`."""
    sections = [
        _cards(report.scores),
        section("Worth knowing", _warnings(report.warnings)),
        section("Scores", _scores(report.scores)),
        section("Classes", _classes(report, figures)),
        section("Training", _figure_list(figures, ["loss", "average_precision", "learning_rate"])),
        section("Ground truth beside prediction", _pictures(report.pictures)),
        section("Experiment", _experiment(report)),
    ]
    return html_page(report.title, report.subtitle, sections)


_FIGURE_TEXTS = {
    "loss": "Training loss and its parts over steps",
    "average_precision": "Average precision on the evaluation set over steps",
    "learning_rate": "Learning rate and images per second over steps",
    "precision_recall": "Precision over recall for every class at IoU .50",
}


def _cards(scores: Scores) -> str:
    keys = [key for key in ("AP50", "AP", "AR100", *VOC_MEANINGS) if key in scores.summary]
    cards = [(scores.text(key), f"{key}, {scores.meaning(key)}") for key in keys]
    counts = scores.first
    cards += [(f"{counts.images:,}", "images scored"), (f"{counts.truths:,}", "objects to find")]
    return card_row(cards)


def _warnings(warnings: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(warning)}</li>" for warning in warnings)
    return items and f'<ul class="warnings">{items}</ul>'


def _scores(scores: Scores) -> str:
    keys = list(SUMMARY_MEANINGS)
    groups = [
        ("Average precision", keys[:6]),
        ("Average recall, mean over IoU .50 to .95", keys[6:]),
        ("Pascal VOC", list(VOC_MEANINGS)),
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
        f'<tr><th scope="row">{key}</th>{_number(value)}'
        f'<td class="about">{html.escape(about)}</td></tr>'
    )


def _classes(report: Report, figures: Mapping[str, bytes]) -> str:
    scores = report.scores
    # The column that a bar illustrates.
    drawn = "AP50" if scores.coco else "VOC_AP"
    rows, columns = [], ["AP50", "AP75", "AP", "AR100", "VOC_AP"]
    for name, counted in scores.first.per_class.items():
        numbers = scores.class_numbers(name, all_metrics=report.all_class_metrics)
        columns = [*dict.fromkeys(key for key in (*columns, *numbers) if key in numbers)]
        rows.append(_class_row(name, counted, numbers, columns, drawn))
    head = "".join(
        f'<th scope="col" class="number">{column}</th>'
        + ('<th scope="col"></th>' if column == drawn else "")
        for column in ("objects", "found boxes", *columns)
    )
    head = f'<tr><th scope="col">class</th>{head}</tr>'
    return table("", head, rows) + _figure_list(figures, ["precision_recall"])


def _class_row(
    name: str,
    counted: ClassScores | VocClassScores,
    numbers: Mapping[str, float | None],
    columns: Sequence[str],
    drawn: str,
) -> str:
    bar = bar_cell(numbers[drawn] or 0)
    cells = "".join(
        _number(numbers[column]) + (bar if column == drawn else "") for column in columns
    )
    return (
        f'<tr><th scope="row">{html.escape(name)}</th>'
        f'<td class="number">{counted.truths:,}</td>'
        f'<td class="number">{counted.detections:,}</td>{cells}</tr>'
    )


def _number(value: float | None) -> str:
    if value is None:
        return f'<td class="number none" title="{NO_TRUTH}">&ndash;</td>'
    return f'<td class="number">{value:.3f}</td>'


def _figure_list(figures: Mapping[str, bytes], names: Iterable[str]) -> str:
    shown = [
        f'<figure><img src="{_data_uri(figures[name], "png")}" '
        f'alt="{_FIGURE_TEXTS[name]}"></figure>'
        for name in names
        if name in figures
    ]
    return f'<div class="figures">{"".join(shown)}</div>' if shown else ""


def _pictures(pictures: Sequence[ReportPicture]) -> str:
    shown = []
    for picture in pictures:
        about = html.escape(f"{picture.name}: {picture.about}")
        uri = _data_uri(picture_bytes(picture.picture, "JPEG"), "jpeg")
        shown.append(
            f'<figure><img loading="lazy" src="{uri}" '
            f'alt="Ground truth beside prediction, image {about}">'
            f"<figcaption>{about}</figcaption></figure>"
        )
    return f'<div class="pictures">{"".join(shown)}</div>' if shown else ""


def _experiment(report: Report) -> str:
    tables = [
        table(caption, None, [fact_row(name, value) for name, value in facts.items()])
        for caption, facts in (("Configuration", report.facts), ("Time", report.timings))
        if facts
    ]
    body = f'<div class="columns">{"".join(tables)}</div>' if tables else ""
    if report.config_text:
        body += (
            "<details><summary>The whole configuration, as YAML</summary>"
            f"<pre>{html.escape(report.config_text)}</pre></details>"
        )
    return body


def _data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
