"""Figures, their axes and legends, as SVG for a page and as PNG, and the confusion matrix as SVG.

Figures are drawn without pyplot, whose state is global: several threads may draw. The confusion
matrix is sharp at any size and has the browser's fonts.
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

from stillbox.evaluation.drawing import clipped, font_file, has_glyphs, text_width
from stillbox.evaluation.matching import Confusion
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
    """Gives texts fonts with their glyphs, or replaces the names at their ends."""
    for text in texts:
        written = text.get_text().replace("\u200b", "")
        if not has_glyphs(written):
            shown = {short_name(name): number for name, number in plain.items()}
            name = max(filter(written.endswith, shown), key=len, default="")
            written = written.removesuffix(name) + shown.get(name, "")
        text.set_text(written)
        if file := font_file(written):
            text.set_fontproperties(FontProperties(fname=file, size=9))


def new_figure(panels: int) -> tuple[Figure, list[Axes]]:
    """Returns a figure with panels side by side."""
    figure = Figure(figsize=(6.4, 3.9), layout="constrained", facecolor="white")
    return figure, [figure.add_subplot(1, panels, number + 1) for number in range(panels)]


def label_axes(axes: Axes, title: str, x: str, y: str) -> None:
    """Sets title, labels and style of a panel."""
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
    """Returns the matrix, without classes that have neither objects nor detections.

    A cell is darker the greater its share of the objects of its row is.
    """
    counts = confusion.counts
    used = counts.sum(axis=0) + counts.sum(axis=1)
    used[-1] = 1
    places = np.flatnonzero(used).tolist()
    shown = counts[np.ix_(places, places)]
    cell = min(46, max(16, 700 // len(places)))
    size = min(13, max(9, round(cell * 0.6)))
    full = [names[confusion.class_ids[at]] for at in places[:-1]]
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
    side = margin + len(places) * cell + 8
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
        row, column = text or "background", text or "missed"
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
    what = "missed" if column == len(full) else f"found as {full[column]}"
    return f"{count:,} of {count_text(total, 'object')} of {full[row]} {what}, {count / total:.0%}"


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
