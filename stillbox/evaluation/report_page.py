"""The report of an evaluation as one self-contained HTML page."""

from collections.abc import Iterable, Mapping, Sequence

from stillbox.evaluation.analysis import Analysis
from stillbox.evaluation.html_page import card_row, html_page, section
from stillbox.evaluation.matrix import matrix_svg
from stillbox.evaluation.mistakes import KINDS, MEANINGS
from stillbox.evaluation.overlay import panels_svg
from stillbox.evaluation.report import Cutout, Report, ReportPicture
from stillbox.evaluation.report_tables import (
    class_table,
    confusion_table,
    fact_tables,
    mistake_table,
    score_tables,
    shape_tables,
)
from stillbox.evaluation.scores import VOC_MEANINGS, Scores
from stillbox.printing import html_text

_FIGURE_TEXTS = {
    "loss": "Training loss and its parts over steps",
    "average_precision": "Average precision on the evaluation set over steps",
    "learning_rate": "Learning rate over steps",
    "speed": "Images per second over steps",
    "precision_recall": "Precision over recall for every class at IoU .50",
    "confidence": "Precision, recall and F1 of all classes over the least score",
    "class_f1": "F1 of every class over the least score",
    "sizes": "Objects by size, found and missed",
    "ratios": "Objects by aspect ratio, found and missed",
}


def render_page(report: Report, figures: Mapping[str, str]) -> str:
    """Returns the page; figures are SVG by name, as `report_files` draws them."""
    scores, analysis = report.scores, report.analysis
    classes = class_table(scores, analysis, all_metrics=report.all_class_metrics)
    sections = [
        _cards(scores, analysis),
        section("Worth knowing", _warnings(report.warnings)),
        section("Mistakes", _mistakes(report)),
        section(
            "Classes",
            _note(
                "Found, precision, recall and F1 are about detections with at least the score of "
                "the class's own threshold, which has the highest F1; IoU .50."
            )
            + classes,
        ),
        section(
            "Confidence", _figure_list(figures, ["confidence", "class_f1", "precision_recall"])
        ),
        section("Confusion matrix", _confusion(analysis)),
        section(
            "Sizes and shapes",
            shape_tables(scores, analysis) + _figure_list(figures, ["sizes", "ratios"]),
        ),
        section("Scores", score_tables(scores)),
        section(
            "Training",
            _figure_list(figures, ["loss", "average_precision", "learning_rate", "speed"]),
        ),
        section("Ground truth beside prediction", _pictures(report.pictures)),
        section("Experiment", _experiment(report)),
    ]
    return html_page(report.title, report.subtitle, sections)


def _cards(scores: Scores, analysis: Analysis) -> str:
    keys = [key for key in ("AP50", "AP", "AR100", *VOC_MEANINGS) if key in scores.summary]
    cards = [(scores.text(key), f"{key}, {scores.meaning(key)}") for key in keys]
    overall = analysis.overall
    if overall.threshold is not None:
        at_best = overall.at_best
        cards += [
            (f"{at_best['F1']:.3f}", "highest F1, all classes together"),
            (f"{overall.threshold:.3f}", "the score with that F1, the best threshold"),
            (f"{at_best['precision']:.1%}", "precision: found boxes that are right"),
            (f"{at_best['recall']:.1%}", "recall: objects that are found"),
        ]
    cards += [(f"{scores.first.images:,}", "images scored")]
    return card_row([*cards, (f"{overall.truths:,}", "objects to find")])


def _warnings(warnings: Sequence[str]) -> str:
    items = "".join(f"<li>{html_text(warning)}</li>" for warning in warnings)
    return items and f'<ul class="warnings">{items}</ul>'


def _note(text: str) -> str:
    return f'<p class="note">{html_text(text)}</p>'


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
        _note(
            "What each kind costs is the AP50 that would be gained if its mistakes alone were "
            f"mended, over all scores. Counts and examples are of {_above(analysis)}."
        ),
        listed,
    ]
    for kind in sorted(KINDS, key=lambda kind: -costs[kind]):
        shown = [each for each in enumerate(report.cutouts) if each[1].kind == kind]
        if shown:
            parts.append(
                f"<h3>{kind} <small>{html_text(MEANINGS[kind])}</small></h3>"
                f'<div class="pictures small">{"".join(_cutout(*one) for one in shown)}</div>'
            )
    return "".join(parts)


def _cutout(number: int, cutout: Cutout) -> str:
    # The caption has the names: in so small a picture they would hide the rest.
    key = f"mistake-{number}"
    panel = cutout.about, cutout.marks
    (svg,) = panels_svg(key, cutout.image, [panel], labels=False, longest=400)
    return f"<figure>{svg}<figcaption>{html_text(cutout.about)}</figcaption></figure>"


def _confusion(analysis: Analysis) -> str:
    if not analysis.overall.truths:
        return ""
    note = _note(
        f"At IoU .50, of {_above(analysis)}. Rows are objects, columns what they are found as; a "
        "darker cell has a greater share of its row. Objects are matched within their class first. "
        "The row background has every detection that is left without an object at that IoU, also "
        "a misplaced or double one; the mistake of that name has only those far from any object."
    )
    matrix = matrix_svg(analysis.confusion, analysis.names)
    figure = f'<figure class="matrix scroll">{matrix}</figure>'
    return note + figure + confusion_table(analysis)


def _figure_list(figures: Mapping[str, str], names: Iterable[str]) -> str:
    shown = [
        "<figure>"
        + figures[name].replace("<svg ", f'<svg aria-label="{_FIGURE_TEXTS[name]}" ', 1)
        + "</figure>"
        for name in names
        if name in figures
    ]
    return f'<div class="figures">{"".join(shown)}</div>' if shown else ""


def _pictures(pictures: Sequence[ReportPicture]) -> str:
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
    if report.config_text:
        body += (
            "<details><summary>The whole configuration, as YAML</summary>"
            f"<pre>{html_text(report.config_text)}</pre></details>"
        )
    return body
