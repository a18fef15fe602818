"""Figures of an evaluation: precision over recall and over scores, objects by size."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from stillbox.evaluation.analysis import Analysis
from stillbox.evaluation.charts import (
    BAD,
    GOOD,
    GREY,
    INK,
    MUTED,
    add_legend,
    label_axes,
    new_figure,
    short_name,
)
from stillbox.evaluation.flat import Floats
from stillbox.evaluation.palette import PALETTE, css
from stillbox.evaluation.scores import Scores
from stillbox.evaluation.shapes import Histogram

# More lines are drawn in grey.
_MOST_CURVES = 10


def precision_recall_figure(scores: Scores) -> Figure | None:
    """Returns precision over recall of every class at IoU .50, None without ground truth.

    Many classes are drawn in grey and without names.
    """
    named = scores.curves()
    curves: Mapping[str, NDArray[np.float64]] = {
        f"{ap:.2f}  {short_name(name)}": precision for name, (ap, precision) in named.items()
    }
    if not curves:
        return None
    figure, (axes,) = new_figure(1)
    label_axes(axes, "Precision over recall, IoU .50", "recall", "precision")
    few, recalls = len(curves) <= _MOST_CURVES, np.linspace(0.0, 1.0, 101)
    for number, (label, precision) in enumerate(curves.items()):
        if few:
            color = css(PALETTE[number % len(PALETTE)])
            axes.plot(recalls, precision, color=color, linewidth=2.0, label=label)
        else:
            axes.plot(recalls, precision, color=GREY, linewidth=0.8, alpha=0.7)
    if len(curves) > 1:
        mean = np.mean(list(curves.values()), axis=0)
        label = f"{np.mean([ap for ap, _ in named.values()]):.2f}  mean"
        axes.plot(recalls, mean, color=INK, linewidth=2.2, linestyle="--", label=label)
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(0.0, 1.03)
    add_legend(axes, title="AP50  class")
    return figure


def confidence_figure(analysis: Analysis) -> Figure | None:
    """Returns precision, recall and F1 over the least score, None if no detection is correct."""
    overall = analysis.overall
    if overall.threshold is None:
        return None
    figure, (axes,) = new_figure(1)
    label_axes(axes, "All classes together, IoU .50", "least score", "")
    curves = {"precision": overall.precision, "recall": overall.recall, "F1": overall.f1}
    for number, (label, values) in enumerate(curves.items()):
        axes.plot(overall.levels, values, color=css(PALETTE[number]), linewidth=2.0, label=label)
    best = overall.threshold
    axes.axvline(best, color=MUTED, linewidth=1.2, linestyle=":", label=f"best: {best:.3f}")
    axes.set_xlim(overall.levels[0], overall.levels[-1])
    axes.set_ylim(0.0, 1.03)
    add_legend(axes)
    return figure


def class_f1_figure(analysis: Analysis) -> Figure | None:
    """Returns F1 of several classes over the least score, None if no detection is correct.

    Many classes are drawn in grey and without names.
    """
    known = {i: one for i, one in analysis.per_class.items() if one.threshold is not None}
    if not known or len(analysis.per_class) == 1:
        return None
    figure, (axes,) = new_figure(1)
    label_axes(axes, "F1 of every class", "least score", "F1")
    for number, (class_id, one) in enumerate(known.items()):
        color = css(PALETTE[number % len(PALETTE)])
        _class_line(axes, one.levels, one.f1, analysis.names[class_id], color, many=len(known))
        if len(known) <= _MOST_CURVES:
            best = one.at_best["F1"] or 0.0
            axes.plot([one.threshold or 0.0], [best], color=color, marker="o", markersize=5)
    overall = analysis.overall
    if len(known) > 1:
        axes.plot(
            overall.levels, overall.f1, color=INK, linewidth=2.2, linestyle="--", label="together"
        )
    axes.set_xlim(overall.levels[0], overall.levels[-1])
    axes.set_ylim(0.0, 1.03)
    add_legend(axes)
    return figure


def histogram_figure(histogram: Histogram, title: str, measure: str) -> Figure | None:
    """Returns objects by a measure, found and missed ones, None without objects."""
    if not len(histogram.correct):
        return None
    figure, (axes,) = new_figure(1)
    label_axes(axes, title, measure, "objects")
    low, high = histogram.edges[:-1], histogram.edges[1:]
    width = 0.94 * (high - low)
    axes.bar(low, histogram.correct, color=GOOD, label="found", align="edge", width=width)
    axes.bar(
        low,
        histogram.missed,
        bottom=histogram.correct,
        color=BAD,
        label="missed",
        align="edge",
        width=width,
    )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    add_legend(axes)
    return figure


def _class_line(axes: Axes, x: Floats, y: Floats, label: str, color: str, *, many: int) -> None:
    if many <= _MOST_CURVES:
        # A name that begins with an underscore would be left out of the legend.
        axes.plot(x, y, color=color, linewidth=2.0, label=f"\u200b{short_name(label)}")
    else:
        axes.plot(x, y, color=GREY, linewidth=0.8, alpha=0.7)
