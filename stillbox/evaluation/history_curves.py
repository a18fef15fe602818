"""Curves of a training run over steps: losses, learning rate, speed, average precision."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from stillbox.evaluation.charts import add_legend, label_axes, new_figure
from stillbox.evaluation.history import History
from stillbox.evaluation.palette import PALETTE, Color, css
from stillbox.evaluation.scores import VOC_MEANINGS

_LOSSES = {
    "loss": "total",
    "classification_loss": "classification",
    "localization_loss": "localization",
    "regularization_loss": "regularization",
}

_SCORES = ("AP", "AP50", "AP75", *VOC_MEANINGS)


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


def _marker(steps: NDArray[np.int64]) -> str:
    """Returns the marker of a curve: a single point has no line."""
    return "o" if len(steps) == 1 else ""


def moving_average(values: NDArray[np.float64], reach: int) -> NDArray[np.float64]:
    """Returns `[S]`, the mean over up to `reach` neighbours on either side."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)
