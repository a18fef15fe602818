"""The report of an evaluation: its page, its figures and their PNG and SVG files."""

import base64
import dataclasses
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from stillbox.evaluation import charts, drawing
from stillbox.evaluation.analysis import analyse
from stillbox.evaluation.coco import SUMMARY_MEANINGS
from stillbox.evaluation.history import History
from stillbox.evaluation.pictures import Mark, panels_svg
from stillbox.evaluation.report import Cutout, Report, ReportPicture, write_report
from stillbox.evaluation.scores import score
from tests.evaluation.builders import result, truth

BOX = [10, 10, 60, 60]
VOID = {"meta", "img", "br", "link", "input", "hr"}
FETCHED = ("src", "href", "srcset", "xlink:href")


def history():
    return History(
        training=tuple(
            {
                "step": step,
                "loss": 100.0 / step,
                "classification_loss": 60.0 / step,
                "learning_rate": 0.1,
                "images_per_second": 20.0,
            }
            for step in range(1, 60)
        ),
        evaluations=((30, {"AP": 0.2, "AP50": 0.4, "AP75": None}), (60, {"AP": 0.3, "AP50": 0.6})),
    )


def perfect_set(classes=2):
    names = {i: f"class {i}" for i in range(1, classes + 1)} | {99: "<b>absent</b>"}
    truths = [truth(str(i), [BOX], [i]) for i in range(1, classes + 1)]
    results = [result(str(i), [BOX], [0.9], [i]) for i in range(1, classes + 1)]
    return truths, results, names


def scores(classes=2, metrics=("coco",)):
    return score(*perfect_set(classes), metrics=metrics)


class Page(HTMLParser):
    """Checks that tags are balanced, and collects the addresses that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.open, self.sources, self.alts, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.sources += [values[name] for name in FETCHED if name in values]
        if tag == "svg":
            self.alts.append(values.get("aria-label"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text.append(data)


def parse(path):
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    assert page.open == []
    return page, " ".join(page.text)


@pytest.fixture(scope="module")
def report():
    picture = np.full((40, 90, 3), 200, np.uint8)
    mark = Mark(box=(9, 9, 30, 30), text="<u>\u732b</u>", color=(9, 9, 9))
    panels = [("ground truth: 1 box", [mark]), ("prediction: no boxes", [])]
    return Report(
        title="run <1>",
        subtitle="a & b",
        scores=scores(),
        analysis=analyse(*perfect_set()),
        history=history(),
        pictures=[ReportPicture(image=picture, panels=panels, name='x"y', about="1 box")],
        cutouts=[Cutout(kind="missed", image=picture, marks=[], about="<i>owl</i>, image 7")],
        facts={"input": "160 x 160"},
        config_text="model:\n  name: <none>",
        timings={"training": "5 min"},
        warnings=["no ground truth of <b>absent</b>"],
    )


@pytest.fixture(scope="module")
def folder(report, tmp_path_factory):
    return write_report(report, tmp_path_factory.mktemp("report")).parent


def test_the_page_shows_everything_and_fetches_nothing(folder):
    page, text = parse(folder / "report.html")
    assert all(source.startswith(("data:image/", "#")) for source in page.sources)
    written = (folder / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in written
    assert "url(" not in written.replace("url(#", "")
    for phrase in (
        *("run <1>", "a & b", *SUMMARY_MEANINGS, "no ground truth of this size", "<b>absent</b>"),
        *("class 2", "160 x 160", "name: <none>", "5 min", 'x"y', "<i>owl</i>, image 7"),
        *("<u>\u732b</u>", "highest F1, all classes together"),
    ):
        assert phrase in text
    assert "-1" not in text
    # Ten figures, the matrix, a mistake and two panels have descriptions for screen readers.
    assert len(page.alts) == 14
    assert all(page.alts)


def test_curves_and_pictures_lie_beside_the_page_and_open(folder):
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    drawn = "average_precision class_f1 confidence learning_rate loss precision_recall ratios"
    curves_of = [*drawn.split(), "reliability", "sizes", "speed"]
    tables = ["classes", "confidence", "confusion", "mistakes", "sizes"]
    assert files == [
        *(f"csv/{name}.csv" for name in tables),
        *(f"curves/{name}.png" for name in curves_of),
        "pictures/001.jpg",
        "report.html",
        "report.json",
    ]
    for name in files[5:-2]:
        with Image.open(folder / name) as image:
            image.load()


def test_embedded_images_are_whole(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    uris = re.findall(r"data:image/\w+;base64,([^\"]+)", text)
    # Of two panels of an image, one has it.
    assert len(uris) == 2
    for uri in uris:
        with Image.open(io.BytesIO(base64.b64decode(uri, validate=True))) as image:
            image.load()


def page_text(truths, results, names, tmp_path):
    scored = score(truths, results, names)
    report = Report(title="r", scores=scored, analysis=analyse(truths, results, names))
    return " ".join(parse(write_report(report, tmp_path))[1].split())


def test_missed_objects_that_cost_nothing_are_counted_over_all_scores_too(tmp_path):
    # The second owl has a detection below the best threshold: missed above it, and not over all.
    truths = [truth("1", [BOX]), truth("2", [BOX])]
    low = [[200, 200, 240, 240]] * 3
    results = [result("1", [BOX], [0.9]), result("2", [*low, BOX], [0.5, 0.5, 0.5, 0.1])]
    text = page_text(truths, results, {1: "owl"}, tmp_path)
    assert "costs AP50 over all scores above the threshold" in text
    assert "(TIDE: Miss) 0.000 0 1" in text
    mistakes = json.loads((tmp_path / "report.json").read_text())["mistakes"]
    assert mistakes["missed"] == {"count": 1, "count_over_all_scores": 0, "cost": 0.0}


def test_confused_detections_beside_fewer_objects_in_the_matrix_are_explained(tmp_path):
    # Three cats are on the owl; the cat in the other image has the lowest score.
    names = {1: "owl", 2: "cat"}
    truths = [truth("1", [BOX], [1]), truth("2", [BOX], [2])]
    results = [result("1", [BOX] * 3, [0.8, 0.7, 0.6], [2] * 3), result("2", [BOX], [0.5], [2])]
    text = page_text(truths, results, names, tmp_path)
    assert "the matrix counts 1 object, the mistakes 3 confused detections" in text
    fewer = [dataclasses.replace(results[0], **first_of(results[0])), results[1]]
    assert "Between classes" not in page_text(truths, fewer, names, tmp_path)


def first_of(image_result):
    return {
        "boxes": image_result.boxes[:1],
        "scores": image_result.scores[:1],
        "class_ids": image_result.class_ids[:1],
    }


def test_detections_of_a_class_are_not_called_found_objects(tmp_path):
    # Two detections of one object: more than there are objects.
    far = [200, 200, 240, 240]
    results = [result("1", [far, BOX], [0.9, 0.8])]
    text = page_text([truth("1", [BOX])], results, {1: "owl"}, tmp_path)
    assert "class objects detections correct precision recall F1 threshold" in text
    assert "owl 1 2 1 0.500 1.000" in text
    assert "found boxes" not in text


def test_empty_sections_are_left_out(tmp_path):
    nothing = [truth("1")], [], {1: "cat"}
    empty = Report(title="empty", scores=score(*nothing), analysis=analyse(*nothing))
    page, text = parse(write_report(empty, tmp_path))
    assert page.sources == []
    for heading in ("Worth knowing", "Training", "Mistakes", "beside prediction", "Experiment"):
        assert heading not in text


@pytest.mark.parametrize(
    ("metrics", "column"),
    [
        (("pascal_voc",), "VOC_AP"),
        (("coco", "weighted_pascal_voc"), "VOC_AP"),
        (("open_images",), "OpenImages_AP"),
    ],
)
def test_the_metrics_that_were_computed_are_shown(tmp_path, metrics, column):
    scored = scores(2, metrics)
    past = History(evaluations=((1, dict.fromkeys(scored.summary, 0.2)), (2, scored.summary)))
    parts = {"scores": scored, "analysis": analyse(*perfect_set()), "history": past}
    report = Report(title="voc", all_class_metrics=True, **parts)
    page, text = parse(write_report(report, tmp_path))
    assert column in text
    assert ("VOC_mAP" in text) == ("pascal_voc" in metrics)
    # In a card, in the table and in the legend of the curve.
    assert text.count("OpenImages_mAP") == 3 * ("open_images" in metrics)
    assert "Average precision on the evaluation set over steps" in page.alts
    assert ("AR1 " in text) == ("coco" in metrics)
    # Precision over recall is drawn either way.
    assert "Precision over recall for every class at IoU .50" in page.alts


def test_a_second_report_replaces_the_first(report, folder):
    first = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write_report(report, folder)
    # The same numbers give the same files, byte for byte.
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == first


def test_neither_curves_nor_scores_load_pyplot_or_pandas():
    # A process of its own is needed: another test of this run may have loaded them.
    program = (
        "import sys, stillbox.evaluation.report;"
        "assert not {'matplotlib.pyplot', 'pandas', 'plotly', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_a_training_starts_without_matplotlib():
    program = "import sys, stillbox.training.loop; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nothing_logged_means_no_figure():
    empty = History()
    figures = charts.loss_figure, charts.rate_figure, charts.score_figure, charts.speed_figure
    assert [draw(empty) for draw in figures] == [None] * 4
    assert charts.precision_recall_figure(score([truth("1")], [], {1: "cat"})) is None


def test_a_single_point_and_a_rate_of_zero_can_be_drawn():
    history = History(training=({"step": 1, "loss": 0.0, "learning_rate": 0.0},))
    for draw in (charts.loss_figure, charts.rate_figure):
        assert charts.figure_png(draw(history)).startswith(b"\x89PNG")


def test_axes_are_labelled_and_every_class_is_named_with_its_ap():
    (axes,) = charts.precision_recall_figure(scores(3)).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("recall", "precision")
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["1.00  class 1", "1.00  class 2", "1.00  class 3", "1.00  mean"]
    (loss,) = charts.loss_figure(history()).axes
    assert (loss.get_xlabel(), loss.get_ylabel()) == ("step", "loss")
    # From 100 down to 1.7: drawn over a logarithmic axis.
    assert loss.get_yscale() == "log"


def test_classes_whose_names_begin_alike_have_a_curve_each():
    names = {1: "w" * 90 + "1", 2: "w" * 90 + "2", 3: "owl"}
    truths = [truth("1", [BOX, BOX, BOX], [1, 2, 3])]
    figure = charts.precision_recall_figure(score(truths, [result("1", [BOX], [0.9], [3])], names))
    *curves, mean = figure.axes[0].lines
    assert len(curves) == 3
    assert mean.get_ydata() == pytest.approx(np.full(101, 1 / 3))


def test_a_tiny_part_of_the_loss_does_not_squeeze_the_rest():
    lines = tuple(
        {"step": step, "loss": 5.0 / step, "regularization_loss": 1e-6} for step in range(1, 9)
    )
    (loss,) = charts.loss_figure(History(training=lines)).axes
    assert (loss.get_yscale(), loss.get_ylim()[0]) == ("linear", 0)


def test_labels_on_a_small_image_are_small():
    mark = Mark(box=(10, 10, 30, 30), text="cat", color=(9, 9, 9))
    (svg,) = panels_svg("key", np.zeros((60, 100, 3), np.uint8), [("", [mark])])
    # Five times as large as the image, as its raster.
    assert 'viewBox="0 0 500 300"' in svg
    assert 'x="50.0" y="50.0" width="100.0"' in svg
    assert int(re.search(r'font-size="(\d+)"', svg)[1]) < 20


def test_many_classes_turn_grey_behind_their_mean():
    (axes,) = charts.precision_recall_figure(scores(25)).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["1.00  mean"]
    assert len(axes.lines) == 26


def test_a_moving_average_by_hand():
    # One neighbour on either side: (1+3)/2, (1+3+8)/3, (3+8)/2.
    assert charts.moving_average(np.array([1.0, 3.0, 8.0]), 1).tolist() == [2.0, 4.0, 5.5]


def test_a_name_without_glyphs_is_a_number_in_files_only(monkeypatch):
    monkeypatch.setattr(drawing, "_system_fonts", tuple)
    drawing.font_file.cache_clear()
    names = {4: "\U00010000", 5: "_cat $x$"}
    analysis = analyse([truth("1", [BOX, BOX], [4, 5])], [result("1", [BOX], [0.9], [4])], names)
    analysis = dataclasses.replace(analysis, per_class={**analysis.per_class, 5: analysis.overall})
    figure = charts.class_f1_figure(analysis)
    page = charts.figure_svg(figure, "f1")
    assert "\U00010000" in page
    assert "_cat $x$" in page
    charts.figure_png(figure, {"\U00010000": "class 4"})
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert texts[:2] == ["class 4", "_cat $x$"]


def test_figures_take_their_colours_from_the_page():
    page = charts.figure_svg(charts.loss_figure(history()), "loss")
    assert "var(--ink)" in page
    assert "#212529" not in page
