"""Figures of an evaluation and of a training run.

An evaluation has precision over recall and over scores, and objects by size. A run has losses,
learning rate, speed and average precision over its steps.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stillbox.evaluation.analysis import Analysis, Histogram
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
from stillbox.evaluation.drawing import PALETTE, Color, css
from stillbox.evaluation.history import History, Series
from stillbox.evaluation.results import FloatArray, IntArray
from stillbox.evaluation.scores import VOC_MEANINGS, Scores

# More lines are drawn in grey.
_MOST_CURVES = 10


def precision_recall_figure(scores: Scores) -> Figure | None:
    """Returns precision over recall of every class at IoU .50, None without ground truth.

    Many classes are drawn in grey and without names.
    """
    named = scores.curves()
    curves: Mapping[str, FloatArray] = {
        f"{ap:.2f}  {short_name(name)}": precision for name, (ap, precision) in named.items()
    }
    if not curves:
        return None
    figure, (axes,) = new_figure(1)
    label_axes(axes, "Precision over recall, IoU .50", "recall", "precision")
    recalls = np.linspace(0.0, 1.0, 101)
    for number, (label, precision) in enumerate(curves.items()):
        _class_line(axes, recalls, precision, label, number, many=len(curves))
    if len(curves) > 1:
        mean = np.mean(list(curves.values()), axis=0)
        label = f"{np.mean([ap for ap, _ in named.values()]):.2f}  mean"
        axes.plot(recalls, mean, color=INK, linewidth=2.2, linestyle="--", label=label)
    _finish(axes, recalls, "AP50  class")
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
    _finish(axes, overall.levels)
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
        # A name that begins with an underscore would be left out of the legend.
        label = f"\u200b{short_name(analysis.names[class_id])}"
        color = _class_line(axes, one.levels, one.f1, label, number, many=len(known))
        if len(known) <= _MOST_CURVES:
            best = one.at_best["F1"] or 0.0
            axes.plot([one.threshold or 0.0], [best], color=color, marker="o", markersize=5)
    overall = analysis.overall
    if len(known) > 1:
        axes.plot(
            overall.levels, overall.f1, color=INK, linewidth=2.2, linestyle="--", label="together"
        )
    _finish(axes, overall.levels)
    return figure


def histogram_figure(histogram: Histogram, title: str, measure: str) -> Figure | None:
    """Returns objects by a measure, found and missed ones, None without objects."""
    if not len(histogram.correct):
        return None
    figure, (axes,) = new_figure(1)
    label_axes(axes, title, measure, "objects")
    low, high = histogram.edges[:-1], histogram.edges[1:]
    width = 0.94 * (high - low)
    found, missed = histogram.correct, histogram.missed
    axes.bar(low, found, color=GOOD, label="found", align="edge", width=width)
    axes.bar(low, missed, bottom=found, color=BAD, label="missed", align="edge", width=width)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    add_legend(axes)
    return figure


def _class_line(
    axes: Axes, x: FloatArray, y: FloatArray, label: str, number: int, *, many: int
) -> str:
    """Draws the line of a class, one of `many`, and returns its colour."""
    if many > _MOST_CURVES:
        axes.plot(x, y, color=GREY, linewidth=0.8, alpha=0.7)
        return GREY
    color = css(PALETTE[number % len(PALETTE)])
    axes.plot(x, y, color=color, linewidth=2.0, label=label)
    return color


def _finish(axes: Axes, x: FloatArray, title: str | None = None) -> None:
    """Limits the axes to the values of x and to shares, and adds the legend."""
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(0.0, 1.03)
    add_legend(axes, title)


_LOSSES = {
    "loss": "total",
    "classification_loss": "classification",
    "localization_loss": "localization",
    "regularization_loss": "regularization",
}

_SCORES = ("AP", "AP50", "AP75", *VOC_MEANINGS)


def _present(series: Mapping[str, Series]) -> dict[str, Series]:
    """Returns the series that have points."""
    return {name: one for name, one in series.items() if len(one[0])}


def loss_figure(history: History) -> Figure | None:
    """Returns the losses over steps (faint) and their moving averages, None if none was logged."""
    present = _present({label: history.series(name) for name, label in _LOSSES.items()})
    if not present:
        return None
    figure, (axes,) = new_figure(1)
    label_axes(axes, "Training loss", "step", "loss")
    for number, (label, (steps, values)) in enumerate(present.items()):
        color = css(PALETTE[number])
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=1.0)
        smooth = moving_average(values, max(1, len(values) // 25))
        axes.plot(steps, smooth, color=color, linewidth=2.0, label=label, marker=_marker(steps))
    lowest = min(values.min() for _, values in present.values())
    _, total = next(iter(present.values()))
    # On a linear axis, a loss that starts in the hundreds hides the rest; on another, a part that
    # is next to nothing squeezes it.
    if total.min() > 0 and total.max() / total.min() > 50:
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(lowest, total.min() / 100) / 1.5)
    else:
        axes.set_ylim(bottom=min(0.0, lowest))
    add_legend(axes)
    return figure


def rate_figure(history: History) -> Figure | None:
    """Returns the learning rate over steps, None if it was not logged."""
    return _step_figure(history, "learning_rate", "Learning rate", "learning rate", PALETTE[1])


def speed_figure(history: History) -> Figure | None:
    """Returns images per second over steps, None if they were not logged."""
    return _step_figure(history, "images_per_second", "Speed", "images per second", PALETTE[2])


def score_figure(history: History) -> Figure | None:
    """Returns AP, AP50, AP75 and VOC's mAP over steps, None if nothing was evaluated."""
    present = _present({name: history.evaluation_series(name) for name in _SCORES})
    if not present:
        return None
    figure, (axes,) = new_figure(1)
    label_axes(axes, "Average precision on the evaluation set", "step", "average precision")
    for number, (name, (steps, values)) in enumerate(present.items()):
        color = css(PALETTE[number])
        axes.plot(steps, values, color=color, linewidth=2.0, marker="o", markersize=4.5, label=name)
        axes.annotate(
            f"{values[-1]:.3f}",
            (float(steps[-1]), float(values[-1])),
            xytext=(6, 0),
            textcoords="offset points",
            color=color,
            fontsize=9,
            va="center",
        )
    # A detector at its beginning would be a line along the lower edge.
    highest = max(float(values.max()) for _, values in present.values())
    axes.set_ylim(0.0, min(max(1.2 * highest, 0.01), 1.02))
    axes.margins(x=0.08)
    add_legend(axes)
    return figure


def _step_figure(history: History, name: str, title: str, unit: str, color: Color) -> Figure | None:
    steps, values = history.series(name)
    if not len(steps):
        return None
    figure, (axes,) = new_figure(1)
    label_axes(axes, title, "step", unit)
    axes.plot(steps, values, color=css(color), linewidth=2.0, marker=_marker(steps))
    axes.set_ylim(bottom=0.0, top=1.08 * float(values.max()) or 1.0)
    return figure


def _marker(steps: IntArray) -> str:
    """Returns the marker of a curve: a single point has no line."""
    return "o" if len(steps) == 1 else ""


def moving_average(values: FloatArray, reach: int) -> FloatArray:
    """Returns `[S]`, the mean over up to `reach` neighbours on either side."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)
