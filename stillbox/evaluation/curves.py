"""Figures: losses, learning rate, AP over steps, precision over recall.

Drawn without pyplot, whose state is global: several threads may draw.
"""

import io
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from stillbox.evaluation.history import History
from stillbox.evaluation.palette import PALETTE, css
from stillbox.evaluation.scores import VOC_MEANINGS, Scores

_INK, _MUTED, _GRID = "#212529", "#6c757d", "#e9ecef"
_LOSSES = {
    "loss": "total",
    "classification_loss": "classification",
    "localization_loss": "localisation",
    "regularization_loss": "regularisation",
}
_SCORES = ("AP", "AP50", "AP75", *VOC_MEANINGS)
# More lines are drawn in grey.
_MOST_CURVES = 10


def loss_figure(history: History) -> Figure | None:
    """Returns the losses over steps (faint) and their moving averages, None if none was logged."""
    all_series = {label: history.series(name) for name, label in _LOSSES.items()}
    present = {label: series for label, series in all_series.items() if len(series[0])}
    if not present:
        return None
    figure, (axes,) = new_figure(1)
    label_axes(axes, "Training loss", "step", "loss")
    for number, (label, (steps, values)) in enumerate(present.items()):
        color = css(PALETTE[number])
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=1.0)
        smooth = moving_average(values, max(1, len(values) // 25))
        axes.plot(steps, smooth, color=color, linewidth=2.0, label=label)
    lowest = min(values.min() for _, values in present.values())
    highest = max(values.max() for _, values in present.values())
    # On a linear axis, a loss that starts in the hundreds hides the rest.
    if lowest > 0 and highest / lowest > 50:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=min(0.0, lowest))
    add_legend(axes)
    return figure


def rate_figure(history: History) -> Figure | None:
    """Returns learning rate and speed over steps, None if neither was logged."""
    both = [
        ("Learning rate", "learning rate", history.series("learning_rate")),
        ("Speed", "images per second", history.series("images_per_second")),
    ]
    panels = [panel for panel in both if len(panel[2][0])]
    if not panels:
        return None
    figure, all_axes = new_figure(len(panels))
    for number, (title, unit, (steps, values)) in enumerate(panels):
        axes = all_axes[number]
        label_axes(axes, title, "step", unit)
        axes.plot(steps, values, color=css(PALETTE[number + 1]), linewidth=2.0)
        axes.set_ylim(bottom=0.0, top=1.08 * float(values.max()) or 1.0)
    return figure


def score_figure(history: History) -> Figure | None:
    """Returns AP, AP50, AP75 and VOC's mAP over steps, None if nothing was evaluated."""
    all_series = {name: history.evaluation_series(name) for name in _SCORES}
    present = {name: series for name, series in all_series.items() if len(series[0])}
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
    axes.set_ylim(0.0, 1.02)
    axes.margins(x=0.08)
    add_legend(axes)
    return figure


def precision_recall_figure(scores: Scores) -> Figure | None:
    """Returns precision over recall of every class at IoU .50, None without ground truth.

    Many classes are drawn in grey and without names.
    """
    named = scores.curves()
    curves: Mapping[str, NDArray[np.float64]] = {
        f"{name}  {ap:.2f}": precision for name, (ap, precision) in named.items()
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
            axes.plot(recalls, precision, color="#adb5bd", linewidth=0.8, alpha=0.7)
    if len(curves) > 1:
        mean = np.mean(list(curves.values()), axis=0)
        label = f"mean  {np.mean([ap for ap, _ in named.values()]):.2f}"
        axes.plot(recalls, mean, color=_INK, linewidth=2.2, linestyle="--", label=label)
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(0.0, 1.03)
    add_legend(axes, title="class  AP50")
    return figure


def figure_png(figure: Figure) -> bytes:
    """Returns the figure as PNG, at twice its size on a page."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    # Without a version in its metadata, the same figure gives the same bytes.
    figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    return buffer.getvalue()


def moving_average(values: NDArray[np.float64], reach: int) -> NDArray[np.float64]:
    """Returns `[S]`, the mean over up to `reach` neighbours on either side."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def new_figure(panels: int) -> tuple[Figure, list[Axes]]:
    """Returns a figure with panels side by side."""
    figure = Figure(figsize=(6.4, 3.9), layout="constrained", facecolor="white")
    return figure, [figure.add_subplot(1, panels, number + 1) for number in range(panels)]


def label_axes(axes: Axes, title: str, x: str, y: str) -> None:
    """Sets title, labels and style of a panel."""
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=_INK, pad=10)
    axes.set_xlabel(x, fontsize=10, color=_MUTED)
    axes.set_ylabel(y, fontsize=10, color=_MUTED)
    axes.tick_params(labelsize=9, colors=_MUTED, length=0)
    axes.grid(True, color=_GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#ced4da")
    if x == "step":
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def add_legend(axes: Axes, title: str | None = None) -> None:
    """Adds a legend where the lines leave room."""
    legend = axes.legend(
        fontsize=9, frameon=True, framealpha=0.85, edgecolor="none", title=title, title_fontsize=9
    )
    for text in legend.get_texts():
        text.set_color(_INK)
