"""The tables of a report."""

from collections.abc import Mapping

import numpy as np

from stillbox.evaluation.analysis import Analysis
from stillbox.evaluation.coco import NO_TRUTH, SUMMARY_MEANINGS
from stillbox.evaluation.html_page import bar_cell, fact_row, head_row, number_cell, table
from stillbox.evaluation.mistakes import KINDS, MEANINGS
from stillbox.evaluation.scores import VOC_MEANINGS, Scores
from stillbox.evaluation.shapes import Group
from stillbox.printing import html_text

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
        one = analysis.per_class[class_id]
        at_best = one.at_best
        cells = [
            number_cell(one.truths),
            number_cell(one.found),
            *(
                number_cell(value, why=_NOTHING_CORRECT)
                for value in (at_best["precision"], at_best["recall"], at_best["F1"], one.threshold)
            ),
            *(
                number_cell(numbers[key], why=NO_TRUTH)
                + (bar_cell(numbers[key] or 0) if key == drawn else "")
                for key in columns
            ),
        ]
        rows.append(f'<tr><th scope="row">{html_text(name)}</th>{"".join(cells)}</tr>')
    metrics = [part for key in columns for part in ([key, ""] if key == drawn else [key])]
    head = head_row(
        ["class"], ["objects", "found", "precision", "recall", "F1", "threshold", *metrics]
    )
    return table("", head, rows, sortable=True)


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
            # Below the name: on a phone a column at the end would be out of sight.
            f'<tr><th scope="row">{kind}<small>{html_text(MEANINGS[kind])}</small></th>'
            f"{number_cell(cost)}{bar_cell(cost / longest)}{number_cell(counts[kind])}</tr>"
        )
    head = head_row(["mistake"], ["costs AP50", "", "count"])
    both = (
        f"Without any wrong detection AP50 would rise by {costs.false_positives:.3f}; if objects "
        f"that are not found did not count, by {costs.false_negatives:.3f}."
    )
    return table("", head, rows, sortable=True) + f'<p class="note">{both}</p>'


def confusion_table(analysis: Analysis) -> str:
    """Returns the most frequent confusions of two classes."""
    counts = analysis.confusion.counts[:-1, :-1].copy()
    totals = analysis.confusion.counts[:-1].sum(axis=1)
    np.fill_diagonal(counts, 0)
    names = list(analysis.names.values())
    order = np.argsort(-counts, axis=None, kind="stable")[:_CONFUSIONS]
    rows = []
    for row, column in zip(*np.unravel_index(order, counts.shape), strict=True):
        if count := int(counts[row, column]):
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
            _shape_row(name, one, [summary[aps[name]] for _ in more]) for name, one in parts.items()
        ]
        tables.append(table("", head_row([caption.lower()], [*columns, *more]), rows))
    return f'<div class="columns">{"".join(tables)}</div>'


def _shape_row(name: str, one: Group, more: list[float | None]) -> str:
    numbers = one.numbers
    cells = [number_cell(one.truths), number_cell(numbers["recall"], why=NO_TRUTH)]
    cells.append(number_cell(numbers["precision"], why="no detections" if one.truths else NO_TRUTH))
    cells += [number_cell(value, why=NO_TRUTH) for value in more]
    return f'<tr><th scope="row" title="{html_text(one.about)}">{name}</th>{"".join(cells)}</tr>'


def fact_tables(groups: Mapping[str, Mapping[str, str]]) -> str:
    """Returns names and values under captions; empty groups are left out."""
    tables = [
        table(caption, None, [fact_row(name, value) for name, value in facts.items()])
        for caption, facts in groups.items()
        if facts
    ]
    return f'<div class="columns">{"".join(tables)}</div>' if tables else ""
