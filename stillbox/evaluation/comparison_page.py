"""The page of a comparison: numbers with their intervals, and the images that differ most."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stillbox.evaluation.coco import NO_TRUTH, SUMMARY_MEANINGS
from stillbox.evaluation.comparison import Change, Comparison, ModelFigures
from stillbox.evaluation.evaluator import EvaluationResult
from stillbox.evaluation.gallery import draw_panels
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
from stillbox.evaluation.pictures import Mark
from stillbox.evaluation.report import ReportPicture, picture_list
from stillbox.experiment.schema import Evaluation
from stillbox.inputs.decode import decode_image
from stillbox.printing import count_text, html_text

PICTURES = 8
"""Images that a page shows."""

_NUMBERS = ("first", "second", "change", "from", "to")


def draw_differences(
    comparison: Comparison,
    evaluations: Sequence[EvaluationResult],
    source: TruthSource,
    class_names: Mapping[int, str],
    settings: Evaluation,
    *,
    count: int = PICTURES,
) -> Iterator[ReportPicture]:
    """Yields the images that differ most: the ground truth, and the boxes of both detectors."""
    places = {truth.image_id: place for place, truth in enumerate(evaluations[0].truths)}
    for change in comparison.images[:count]:
        place = places[change.image_id]
        example = source.example(evaluations[0].records[place])
        if example is None:
            continue
        truth = evaluations[0].truths[place]
        panels: list[tuple[str, list[Mark]]] = []
        for name, evaluation in zip(("first", "second"), evaluations, strict=True):
            least = evaluation.shown_from(settings.min_score)
            drawn = draw_panels(truth, evaluation.results[place], class_names, settings, least)
            expected, (_, marks) = drawn
            caption = f"{name}: {count_text(len(marks), 'box')} of a score of {least:.2f} or more"
            panels += [(caption, marks)] if panels else [expected, (caption, marks)]
        yield ReportPicture(
            image=decode_image(example.encoded),
            panels=panels,
            name=change.image_id,
            about=f"AP50 {change.first:.3f} to {change.second:.3f}",
        )


def comparison_page(comparison: Comparison, pictures: Iterable[ReportPicture]) -> str:
    """Returns the page."""
    models = (comparison.first, comparison.second)
    chance = (
        f"The interval of a change, of 95 %, is from {comparison.samples:,} draws of the images. "
        "If it excludes 0, other images of this kind would very likely show the change too."
    )
    sections = [
        _cards(comparison),
        section("Models", _models(models)),
        section("Scores", note(chance) + _changes("", comparison.metrics, SUMMARY_MEANINGS)),
        section("AP of each class", _changes("class", comparison.classes, {})),
        section("Images that differ most", picture_list(tuple(pictures))),
    ]
    subtitle = f"{models[0].source} (first) and {models[1].source} (second)"
    return html_page("Comparison of two models", subtitle, sections)


def _cards(comparison: Comparison) -> str:
    ap = comparison.ap
    shown = [("AP of the first", ap.first, ".3f"), ("AP of the second", ap.second, ".3f")]
    shown.append((f"change of AP {ap.verdict}".rstrip(), ap.change, "+.3f"))
    cards = [("-" if value is None else f"{value:{form}}", about) for about, value, form in shown]
    return card_row([*cards, (f"{comparison.image_count:,}", "images scored")])


def _models(models: Iterable[ModelFigures]) -> str:
    rows = [
        f'<tr><th scope="row">{html_text(model.source)}</th>{number_cell(model.bytes / 1e6, 2)}'
        f"{number_cell(model.gflop, 2)}{number_cell(model.milliseconds, 1)}</tr>"
        for model in models
    ]
    return table("", head_row(["model"], ["size, MB", "GFLOP", "ms an image"]), rows)


def _changes(head: str, changes: Sequence[Change], meanings: Mapping[str, str]) -> str:
    rows = []
    for row in changes:
        numbers = (row.first, row.second, row.change, row.low, row.high)
        cells = "".join(number_cell(number, 4, why=NO_TRUTH) for number in numbers)
        about = f"<td>{row.verdict}</td><td>{html_text(meanings.get(row.name, ''))}</td>"
        rows.append(f'<tr><th scope="row">{html_text(row.name)}</th>{cells}{about}</tr>')
    columns = head_row([head or "metric"], _NUMBERS).removesuffix("</tr>")
    return table("", f'{columns}<th scope="col">chance</th><th></th></tr>', rows, sortable=True)
