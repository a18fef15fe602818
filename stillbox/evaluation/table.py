"""Scores as a table on a terminal."""

from stillbox.evaluation.coco import SUMMARY_MEANINGS
from stillbox.evaluation.scores import MEANINGS, Scores


def scores_table(scores: Scores, *, per_category: bool, all_metrics: bool = False) -> str:
    """Returns the numbers with their meanings, and AP by class if that is wanted.

    Args:
        scores: what is told.
        per_category: a line for every class with something to find.
        all_metrics: all twelve of COCO's numbers in that line.
    """
    keys = list(scores.summary)
    width = max(6, *map(len, keys))
    lines = [f"{key:{width}} {scores.text(key):>6}  {MEANINGS[key]}" for key in keys]
    return "\n".join([*lines, *(_class_lines(scores, all_metrics) if per_category else ())])


def _class_lines(scores: Scores, all_metrics: bool) -> list[str]:
    columns = [*SUMMARY_MEANINGS] if all_metrics else ["AP", "AP50"]
    columns = [*(columns if scores.coco else ()), *(["VOC_AP"] if scores.voc else ())]
    lines = ["", f"{'class':24} {' '.join(f'{column:>6}' for column in columns)} {'boxes':>6}"]
    for name, one in scores.classes().items():
        if one.truths:
            numbers = scores.class_numbers(name, all_metrics=all_metrics)
            row = " ".join(_number(numbers[column]) for column in columns)
            lines.append(f"{name:24} {row} {one.truths:6d}")
    return lines


def _number(value: float | None) -> str:
    return f"{'-':>6}" if value is None else f"{value:6.3f}"
