"""Figures, their axes and legends, as SVG for a page and as PNG.

Drawn without pyplot, whose state is global: several threads may draw.
"""

import io
import warnings
from collections.abc import Iterable, Mapping

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stillbox.evaluation.fonts import clipped, font_file, has_glyphs

INK, MUTED, _GRID, GREY = "#212529", "#6c757d", "#e9ecef", "#adb5bd"
GOOD, BAD, _PAPER = "#2f9e64", "#d9480f", "#fffffe"
"""Colours of text, of labels, of lines without a name, of what is found and of what is missed."""

_ON_PAGE = {
    INK: "--ink",
    MUTED: "--muted",
    _GRID: "--line",
    GREY: "--muted",
    GOOD: "--good",
    BAD: "--bad",
    _PAPER: "--paper",
}


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

    `plain` has the texts that replace names of which no font has the glyphs.
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
