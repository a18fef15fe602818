"""Writes the report of an evaluation: its page, figures and pictures."""

from pathlib import Path

from matplotlib.figure import Figure

from stillbox.evaluation import charts, curves, history_curves
from stillbox.evaluation.figures_files import write_figures
from stillbox.evaluation.pictures import save_picture
from stillbox.evaluation.report import Report
from stillbox.evaluation.report_page import render_page
from stillbox.records.files import write_whole

REPORT = "report.html"
"""Name of the page in its folder."""


def write_report(report: Report, directory: str | Path) -> Path:
    """Writes `report.html`, and beside it its figures as JSON, CSV, PNG and JPEG.

    The page needs no other file and is written last.

    Returns:
        The path of the page.
    """
    directory = Path(directory)
    drawn = {name: figure for name, figure in _draw(report).items() if figure}
    page = render_page(report, {name: charts.figure_svg(one, name) for name, one in drawn.items()})
    write_figures(report.analysis, directory)
    numbers = {name: f"class {class_id}" for class_id, name in report.analysis.names.items()}
    for name, figure in drawn.items():
        path = directory / "curves" / f"{name}.png"
        write_whole(path, charts.figure_png(figure, numbers), below=directory)
    for number, picture in enumerate(report.pictures, start=1):
        path = directory / "pictures" / f"{number:03d}.jpg"
        save_picture(picture.picture, path, below=directory)
    return write_whole(directory / REPORT, page.encode())


def _draw(report: Report) -> dict[str, Figure | None]:
    analysis, shapes = report.analysis, report.analysis.shapes
    size = "square root of the area in pixels"
    return {
        "loss": history_curves.loss_figure(report.history),
        "average_precision": history_curves.score_figure(report.history),
        "learning_rate": history_curves.rate_figure(report.history),
        "speed": history_curves.speed_figure(report.history),
        "precision_recall": curves.precision_recall_figure(report.scores),
        "confidence": curves.confidence_figure(analysis),
        "class_f1": curves.class_f1_figure(analysis),
        "sizes": curves.histogram_figure(shapes.side, "Objects by size", size),
        "ratios": curves.histogram_figure(
            shapes.ratio, "Objects by aspect ratio", "width divided by height"
        ),
    }
