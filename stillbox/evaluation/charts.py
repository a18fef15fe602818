"""Figures of an evaluation and of a run, as SVG for a page and as PNG, and the confusion matrix.

Figures are drawn without pyplot, which has global state: several threads may draw. The confusion
matrix is SVG, which is sharp at any size and has the browser's fonts.
"""

import io
import warnings
from collections.abc import Iterable, Mapping

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stillbox.evaluation.analysis import Analysis, Histogram
from stillbox.evaluation.drawing import (
    PALETTE,
    Color,
    clipped,
    css,
    font_file,
    has_glyphs,
    text_width,
)
from stillbox.evaluation.history import History, Series
from stillbox.evaluation.matching import Confusion
from stillbox.evaluation.results import FloatArray, IntArray
from stillbox.evaluation.scores import HEADLINE, Scores
from stillbox.printing import count_text, html_text

INK, MUTED, _GRID, GREY = "#212529", "#6c757d", "#e9ecef", "#adb5bd"
GOOD, BAD, _PAPER = "#2f9e64", "#d9480f", "#fffffe"
"""Colours of text, labels, unnamed lines, found objects and missed objects."""

_ON_PAGE = {INK: "--ink", MUTED: "--muted", _GRID: "--line", GREY: "--muted"}
_ON_PAGE |= {GOOD: "--good", BAD: "--bad", _PAPER: "--paper"}


def figure_svg(figure: Figure, name: str) -> str:
    """Returns the figure as SVG with text and with the colours of the page; `name` is unique."""
    buffer = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": name}
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # The browser has the glyphs that matplotlib's font lacks.
        warnings.simplefilter("ignore")
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for color, variable in _ON_PAGE.items():
        text = text.replace(color, f"var({variable})")
    return text.replace("<svg ", '<svg role="img" ', 1)


def figure_png(figure: Figure, plain: Mapping[str, str] | None = None) -> bytes:
    """Returns the figure as PNG, at twice its size on a page.

    `plain` maps names that no font can draw to other texts.
    """
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    for axes in figure.axes:
        if (legend := axes.get_legend()) is not None:
            _use_fonts(legend.get_texts(), plain or {})
    # Without a version in its metadata, the same figure gives the same bytes.
    figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    return buffer.getvalue()


def short_name(name: str) -> str:
    """Returns a name in one line that leaves room for the curves."""
    return clipped(" ".join(name.split()), 9, 170)


def _use_fonts(texts: Iterable[Text], plain: Mapping[str, str]) -> None:
    """Gives texts fonts with their glyphs, or replaces the names in them."""
    for text in texts:
        written = text.get_text().replace("\u200b", "")
        if not has_glyphs(written):
            shown = {short_name(name): number for name, number in plain.items()}
            name = max(filter(written.endswith, shown), key=len, default="")
            written = written.removesuffix(name) + shown.get(name, "")
        text.set_text(written)
        if file := font_file(written):
            text.set_fontproperties(FontProperties(fname=file, size=9))


def new_figure() -> tuple[Figure, Axes]:
    """Returns a figure and its axes."""
    figure = Figure(figsize=(6.4, 3.9), layout="constrained", facecolor="white")
    return figure, figure.add_subplot()


def label_axes(axes: Axes, title: str, x: str, y: str) -> None:
    """Sets title, labels and style of axes."""
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=10)
    axes.set_xlabel(x, fontsize=10, color=MUTED)
    axes.set_ylabel(y, fontsize=10, color=MUTED)
    axes.tick_params(labelsize=9, colors=MUTED, length=0)
    axes.grid(True, color=_GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GRID)
    if x == "step":
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def add_legend(axes: Axes, title: str | None = None) -> None:
    """Adds a legend where the lines leave room."""
    legend = axes.legend(
        fontsize=9,
        frameon=True,
        framealpha=0.85,
        edgecolor="none",
        facecolor=_PAPER,
        title=title,
        title_fontsize=9,
    )
    legend.get_title().set_color(MUTED)
    for text in legend.get_texts():
        text.set_color(INK)
        text.set_parse_math(False)


_NAME_WIDTH = 150


def matrix_svg(confusion: Confusion, names: dict[int, str]) -> str:
    """Returns the matrix.

    A cell is darker the greater its share of the objects of its row is.
    """
    shown = confusion.counts
    cell = min(46, max(16, 700 // len(shown)))
    size = min(13, max(9, round(cell * 0.6)))
    full = [names[class_id] for class_id in confusion.class_ids]
    texts = [clipped(name, size, _NAME_WIDTH) for name in full]
    margin = round(max(text_width(text, size) for text in ("background", *texts))) + 26
    parts = [_names(texts, margin, cell, size)]
    for row, counted in enumerate(shown.tolist()):
        total = sum(counted)
        for column, count in enumerate(counted):
            if count:
                about = _about(full, row, column, count, total)
                correct = row == column
                x, y = margin + column * cell, margin + row * cell
                parts.append(_cell(x, y, cell, count, count / total, about, correct=correct))
    side = margin + len(shown) * cell + 8
    return (
        f'<svg class="wide" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" '
        f'width="{side}" height="{side}" font-size="{size}" role="img" '
        f'aria-label="Confusion matrix: rows are objects, columns are detections">'
        f"{''.join(parts)}</svg>"
    )


def _names(texts: list[str], margin: int, cell: int, size: int) -> str:
    side = margin + (len(texts) + 1) * cell
    parts = [
        f'<text x="4" y="{margin - 8}" fill="var(--muted)">object &#8595; detection &#8594;</text>'
        if margin > 130
        else ""
    ]
    for place in range(len(texts) + 2):
        at = margin + place * cell
        rule = f'<line stroke="var(--line)" stroke-width="{2 if place > len(texts) else 1}" '
        parts.append(f'{rule}x1="{margin}" y1="{at}" x2="{side}" y2="{at}"/>')
        parts.append(f'{rule}x1="{at}" y1="{margin}" x2="{at}" y2="{side}"/>')
    for place, text in enumerate([*texts, None]):
        line = f"{margin + (place + 0.5) * cell + size / 3:.0f}"
        row, column = text or "background", text or "nothing"
        start = '<text fill="var(--ink)"'
        parts.append(
            f'{start} text-anchor="end" x="{margin - 6}" y="{line}">{html_text(row)}</text>'
            f'{start} transform="translate({line} {margin - 6}) rotate(-90)">'
            f"{html_text(column)}</text>"
        )
    return "".join(parts)


def _about(full: list[str], row: int, column: int, count: int, total: int) -> str:
    if row == len(full):
        return f"{count_text(count, 'detection')} of {full[column]} without an object"
    meaning = f"found as {'nothing' if column == len(full) else full[column]}"
    return (
        f"{count:,} of {count_text(total, 'object')} of {full[row]} {meaning}, {count / total:.0%}"
    )


def _cell(x: int, y: int, cell: int, count: int, share: float, about: str, *, correct: bool) -> str:
    color = "--good" if correct else "--bad"
    # As many digits as fit.
    size = min(13.0, 1.5 * cell / max(len(str(count)), 2))
    return (
        f'<g><title>{html_text(about)}</title><rect x="{x}" y="{y}" width="{cell}" '
        f'height="{cell}" fill="var({color})" fill-opacity="{0.12 + 0.6 * share:.2f}"/>'
        f'<text fill="var(--ink)" text-anchor="middle" font-size="{size:.1f}" x="{x + cell / 2}" '
        f'y="{y + cell / 2 + size / 3:.1f}">{count}</text></g>'
    )


# More lines are drawn in grey.
_MOST_CURVES = 10


def precision_recall_figure(scores: Scores) -> Figure | None:
    """Returns precision over recall of every class at IoU .50, None without ground truth.

    Many classes are drawn in grey and without names.
    """
    curves = scores.curves()
    if not curves:
        return None
    figure, axes = new_figure()
    label_axes(axes, "Precision over recall, IoU .50", "recall", "precision")
    recalls = np.linspace(0.0, 1.0, 101)
    for number, (name, (ap, precision)) in enumerate(curves.items()):
        label = f"{ap:.2f}  {short_name(name)}"
        _class_line(axes, recalls, precision, label, number, many=len(curves))
    if len(curves) > 1:
        mean = np.mean([precision for _, precision in curves.values()], axis=0)
        label = f"{np.mean([ap for ap, _ in curves.values()]):.2f}  mean"
        axes.plot(recalls, mean, color=INK, linewidth=2.2, linestyle="--", label=label)
    _finish(axes, recalls, "AP50  class")
    return figure


def confidence_figure(analysis: Analysis) -> Figure | None:
    """Returns precision, recall and F1 over the least score, None if no detection is correct."""
    overall = analysis.overall
    if overall.threshold is None:
        return None
    figure, axes = new_figure()
    label_axes(axes, "All classes together, IoU .50", "least score", "")
    curves = {"precision": overall.precision, "recall": overall.recall, "F1": overall.f1}
    for number, (label, values) in enumerate(curves.items()):
        axes.plot(overall.levels, values, color=css(PALETTE[number]), linewidth=2.0, label=label)
    best = overall.threshold
    axes.axvline(best, color=MUTED, linewidth=1.2, linestyle=":", label=f"best: {best:.3f}")
    _finish(axes, overall.levels)
    return figure


def reliability_figure(scores: Scores) -> Figure | None:
    """Returns the share of correct detections over their score, None without COCO's detections."""
    calibration = scores.coco and scores.coco.calibration
    if not calibration or calibration.error is None:
        return None
    figure, axes = new_figure()
    title = f"Calibration of scores: ECE {calibration.error:.3f}, IoU .50"
    label_axes(axes, title, "score", "share of correct detections")
    for each in calibration.bins:
        if each.correct is not None:
            width = 0.94 * (each.high - each.low)
            axes.bar(each.low, each.correct, color=GOOD, align="edge", width=width)
            count = f"{each.detections:,}"
            middle = (each.low + each.high) / 2
            axes.text(middle, each.correct, count, color=MUTED, fontsize=8, ha="center")
    both = np.array([0.0, 1.0])
    axes.plot(both, both, color=INK, linewidth=1.2, linestyle=":", label="as the score says")
    _finish(axes, both)
    return figure


def class_f1_figure(analysis: Analysis) -> Figure | None:
    """Returns F1 of several classes over the least score, None if no detection is correct."""
    known = {
        i: confidence
        for i, confidence in analysis.per_class.items()
        if confidence.threshold is not None
    }
    if not known or len(analysis.per_class) == 1:
        return None
    figure, axes = new_figure()
    label_axes(axes, "F1 of every class", "least score", "F1")
    for number, (class_id, confidence) in enumerate(known.items()):
        # A name that begins with an underscore would be left out of the legend.
        label = f"\u200b{short_name(analysis.names[class_id])}"
        color = _class_line(axes, confidence.levels, confidence.f1, label, number, many=len(known))
        if len(known) <= _MOST_CURVES:
            best = confidence.at_best["F1"] or 0.0
            axes.plot([confidence.threshold or 0.0], [best], color=color, marker="o", markersize=5)
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
    figure, axes = new_figure()
    label_axes(axes, title, measure, "objects")
    low, high = histogram.edges[:-1], histogram.edges[1:]
    width = 0.94 * (high - low)
    correct, missed = histogram.correct, histogram.missed
    axes.bar(low, correct, color=GOOD, label="found", align="edge", width=width)
    axes.bar(low, missed, bottom=correct, color=BAD, label="not found", align="edge", width=width)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    add_legend(axes)
    return figure


def _class_line(
    axes: Axes, x: FloatArray, y: FloatArray, label: str, number: int, *, many: int
) -> str:
    if many > _MOST_CURVES:
        axes.plot(x, y, color=GREY, linewidth=0.8, alpha=0.7)
        return GREY
    color = css(PALETTE[number % len(PALETTE)])
    axes.plot(x, y, color=color, linewidth=2.0, label=label)
    return color


def _finish(axes: Axes, x: FloatArray, title: str | None = None) -> None:
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(0.0, 1.03)
    add_legend(axes, title)


_LOSSES = {
    "loss": "total",
    "classification_loss": "classification",
    "localization_loss": "localization",
    "regularization_loss": "regularization",
}


def _present(series: Mapping[str, Series]) -> dict[str, Series]:
    return {name: curve for name, curve in series.items() if len(curve[0])}


def loss_figure(history: History) -> Figure | None:
    """Returns the losses over steps (faint) and their moving averages, None if none was logged."""
    present = _present({label: history.series(name) for name, label in _LOSSES.items()})
    if not present:
        return None
    figure, axes = new_figure()
    label_axes(axes, "Training loss", "step", "loss")
    for number, (label, (steps, values)) in enumerate(present.items()):
        color = css(PALETTE[number])
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=1.0)
        smooth = moving_average(values, max(1, len(values) // 25))
        axes.plot(steps, smooth, color=color, linewidth=2.0, label=label, marker=_marker(steps))
    lowest = min(values.min() for _, values in present.values())
    _, total = next(iter(present.values()))
    # A loss that starts in the hundreds hides the rest of a linear axis. A part close to 0 squeezes
    # the rest of a logarithmic one.
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
    """Returns the scores of `HEADLINE` over steps, None if nothing was evaluated."""
    present = _present({name: history.evaluation_series(name) for name in HEADLINE})
    if not present:
        return None
    figure, axes = new_figure()
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
    # The first scores of a detector would be a line along the lower edge.
    highest = max(float(values.max()) for _, values in present.values())
    axes.set_ylim(0.0, min(max(1.2 * highest, 0.01), 1.02))
    axes.margins(x=0.08)
    add_legend(axes)
    return figure


def _step_figure(history: History, name: str, title: str, unit: str, color: Color) -> Figure | None:
    steps, values = history.series(name)
    if not len(steps):
        return None
    figure, axes = new_figure()
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
