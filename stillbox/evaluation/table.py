"""Scores as a table on a terminal."""

from stillbox.evaluation.coco import SUMMARY_MEANINGS, CocoScores


def scores_table(scores: CocoScores, *, per_category: bool) -> str:
    """Returns the twelve numbers with their meanings, and AP by class if that is wanted."""
    lines = [
        f"{name:6} {scores.text(name):>6}  {meaning}" for name, meaning in SUMMARY_MEANINGS.items()
    ]
    if per_category:
        lines += ["", f"{'class':24} {'AP':>6} {'AP50':>6} {'boxes':>6}"]
        lines += [
            f"{name:24} {_number(one.ap)} {_number(one.ap50)} {one.truths:6d}"
            for name, one in scores.per_class.items()
            if one.truths
        ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return f"{'-':>6}" if value is None else f"{value:6.3f}"
