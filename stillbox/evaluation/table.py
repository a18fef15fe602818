"""Scores as plain-text tables."""

from collections.abc import Mapping, Sequence

from stillbox.evaluation.coco import SUMMARY_MEANINGS
from stillbox.evaluation.confidence import Confidence
from stillbox.evaluation.scores import Scores
from stillbox.printing import printable_line

# The numbers by which checkpoints are compared.
_HEADLINES = ("AP", "AP50", "AP75", "VOC_mAP", "VOC_weighted_mAP", "OpenImages_mAP")


def scores_table(scores: Scores, *, per_category: bool, all_metrics: bool = False) -> str:
    """Returns the numbers with their meanings, and a line for every class with ground truth."""
    keys = list(scores.summary)
    width = max(6, *map(len, keys))
    lines = [f"{key:{width}} {scores.text(key):>6}  {scores.meaning(key)}" for key in keys]
    return "\n".join([*lines, *(_class_lines(scores, all_metrics) if per_category else ())])


def threshold_text(overall: Confidence) -> str:
    """Returns the threshold with the highest F1 of all classes together, and what it gives."""
    if overall.threshold is None:
        return "best threshold: none, because no detection is correct"
    numbers = ", ".join(f"{name} {value:.3f}" for name, value in overall.at_best.items())
    return f"best threshold: {overall.threshold:.3f}, {numbers}"


def steps_table(evaluations: Sequence[tuple[int, Mapping[str, float | None]]], best: str) -> str:
    """Returns a line for every (step, scores). `best` is the first column, its maximum marked."""
    computed = {key for _, scores in evaluations for key in scores}
    keys = [best, *(key for key in _HEADLINES if key != best and key in computed)]
    width = max(7, *map(len, keys))
    highest = max((scores.get(best) or 0.0 for _, scores in evaluations), default=0.0)
    lines = [" ".join([f"{'step':>8}", *(f"{key:>{width}}" for key in keys)])]
    for step, scores in evaluations:
        values = [scores.get(key) for key in keys]
        texts = ["-" if value is None else f"{value:.5f}" for value in values]
        mark = ["best"] if highest and values[0] == highest else []
        lines.append(" ".join([f"{step:8d}", *(f"{text:>{width}}" for text in texts), *mark]))
    return "\n".join(lines)


def _class_lines(scores: Scores, all_metrics: bool) -> list[str]:
    columns = [*SUMMARY_MEANINGS] if all_metrics else ["AP", "AP50"]
    columns = [*(columns if scores.coco else ()), *scores.class_columns]
    lines = ["", f"{'class':24} {' '.join(f'{column:>6}' for column in columns)} {'boxes':>6}"]
    for name, one in scores.first.per_class.items():
        if one.truths:
            numbers = scores.class_numbers(name, all_metrics=all_metrics)
            row = " ".join(f"{_number(numbers[column]):>{len(column)}}" for column in columns)
            lines.append(f"{printable_line(name):24} {row} {one.truths:6d}")
    return lines


def _number(value: float | None) -> str:
    return f"{'-':>6}" if value is None else f"{value:6.3f}"
