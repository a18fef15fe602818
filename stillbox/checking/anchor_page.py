"""The report on anchors as tables, sentences and a figure."""

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from stillbox.checking.anchor_overlaps import Coverage
from stillbox.checking.anchors import AnchorReport
from stillbox.evaluation.charts import add_legend, label_axes, new_figure
from stillbox.evaluation.palette import PALETTE, css
from stillbox.printing import count_text, printable_line

_CLASSES_SHOWN = 12
_RECALLS = ("recall .4", "recall .5", "mean IoU")


def coverage_tables(report: AnchorReport) -> list[Table]:
    """Returns coverage by size and by class, and the boxes of each feature map."""
    tables = [_coverage("Boxes by size in the network input", "size", report.sizes)]
    if len(report.classes) > 1:
        shown = report.classes[:_CLASSES_SHOWN]
        more = len(report.classes) - len(shown)
        title = "Classes" if not more else f"Classes, the {len(shown)} worst of {len(shown) + more}"
        tables.append(_coverage(title, "class", shown))
    maps = Table(title="Whose anchors suit the boxes best", title_justify="left")
    for name in ("feature map", "anchors", "sides", "boxes", "share"):
        maps.add_column(name, justify="left" if name == "feature map" else "right")
    for row in report.maps:
        share = 100 * row.boxes / report.sizes[0].boxes
        sides = f"{row.smallest:.0f} to {row.largest:.0f} px"
        maps.add_row(row.name, f"{row.anchors:,}", sides, f"{row.boxes:,}", f"{share:.1f} %")
    return [*tables, maps]


def conclusions(report: AnchorReport) -> list[str]:
    """Returns the conclusions, one sentence a line."""
    lines = []
    if report.records < report.total:
        lines.append(f"{report.records:,} of {count_text(report.total, 'record')} read.")
    if report.left_out:
        lines.append(
            f"{count_text(report.left_out, 'record')} without an image that can be used here."
        )
    if report.unmatched is not None:
        fate = (
            "force_match_for_each_row gives them one anchor each"
            if report.forced
            else "they are trained as background: see force_match_for_each_row"
        )
        lines.append(
            f"{100 * report.unmatched:.1f} % of the boxes are no anchor's match at an IoU of "
            f"{report.threshold:g}; {fate}."
        )
    shapes = ", ".join(
        f"{shape.width:.0f}x{shape.height:.0f} ({100 * shape.share:.0f} %)"
        for shape in report.shapes
    )
    lines.append(f"Typical boxes, width x height in pixels of the network input: {shapes}.")
    return lines + _suggested(report)


def _suggested(report: AnchorReport) -> list[str]:
    if report.suggestion is None:
        return ["No other values that were tried cover these boxes better."]
    now, then = report.sizes[0], report.suggestion.coverage
    options = " ".join(f"--set '{override}'" for override in report.suggestion.overrides)
    return [
        f"Recall at .4 would be {then.recall_40:.3f} instead of {now.recall_40:.3f}, at .5 "
        f"{then.recall_50:.3f} instead of {now.recall_50:.3f}, the mean IoU {then.mean_iou:.3f} "
        f"instead of {now.mean_iou:.3f}, with:",
        f"  {options}",
    ]


def _coverage(title: str, name: str, rows: tuple[Coverage, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(name)
    for column in ("boxes", *_RECALLS):
        table.add_column(column, justify="right")
    for row in rows:
        values = (row.recall_40, row.recall_50, row.mean_iou)
        shown = [f"{value:.3f}" if row.boxes else "-" for value in values]
        table.add_row(Text(printable_line(row.name)), f"{row.boxes:,}", *shown)
    return table


def overlap_figure(report: AnchorReport) -> Figure:
    """Returns the boxes by the IoU of their best anchor: sizes stacked, the suggestion a line."""
    figure, (axes,) = new_figure(1)
    label_axes(axes, "Best anchor of each box", "IoU with the best anchor", "boxes")
    bins = len(report.histogram["all"])
    edges = np.linspace(0, 1, bins + 1)
    bottom = np.zeros(bins)
    for number, name in enumerate(("small", "medium", "large")):
        counts = np.array(report.histogram[name])
        if not counts.any():
            continue
        color = css(PALETTE[number])
        axes.bar(
            edges[:-1], counts, 1 / bins, bottom, align="edge", color=color, label=name,
            edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        bottom += counts
    if report.suggested_best is not None:
        counts = np.histogram(report.suggested_best, bins, (0, 1))[0]
        axes.stairs(counts, edges, color="#212529", linewidth=1.8, label="suggested anchors")
    for iou in (0.4, 0.5):
        axes.axvline(iou, color="#495057", linewidth=1.0, linestyle=":")
    axes.set_xlim(0.0, 1.0)
    add_legend(axes)
    return figure
