"""One HTML page about a run. Everything is inside it: it opens offline, from a mail or a stick."""

from pathlib import Path

from matplotlib.figure import Figure

from stillbox.evaluation import curves
from stillbox.evaluation.pictures import save_picture
from stillbox.evaluation.report_page import Report, ReportPicture, render_report
from stillbox.records.files import write_whole

__all__ = ["Report", "ReportPicture", "write_report"]

REPORT = "report.html"
"""Name of the page in its folder."""


def write_report(report: Report, directory: str | Path) -> Path:
    """Writes `report.html`, and its curves and pictures as files of their own beside it.

    The page needs none of those files. It appears when it is complete.

    Returns:
        The path of the page.
    """
    directory = Path(directory)
    figures = {name: curves.figure_png(figure) for name, figure in _figures(report)}
    for name, png in figures.items():
        write_whole(directory / "curves" / f"{name}.png", png)
    for number, picture in enumerate(report.pictures, start=1):
        save_picture(picture.picture, directory / "pictures" / f"{number:03d}.jpg")
    return write_whole(directory / REPORT, render_report(report, figures).encode())


def _figures(report: Report) -> list[tuple[str, Figure]]:
    drawn: list[tuple[str, Figure | None]] = [
        ("loss", curves.loss_figure(report.history)),
        ("average_precision", curves.score_figure(report.history)),
        ("learning_rate", curves.rate_figure(report.history)),
        (
            "precision_recall",
            curves.precision_recall_figure(report.scores) if report.scores else None,
        ),
    ]
    return [(name, figure) for name, figure in drawn if figure is not None]
