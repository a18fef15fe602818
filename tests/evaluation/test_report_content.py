"""What a report shows: drawn images, mistakes cut out of their images, figures as JSON and CSV."""

import csv
import json
import tracemalloc
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from stillbox.errors import UserError
from stillbox.evaluation import figures_files
from stillbox.evaluation.analysis import analyse
from stillbox.evaluation.evaluator import EvaluationResult, Timings
from stillbox.evaluation.figures_files import figures, write_figures
from stillbox.evaluation.gallery import cut_out, draw_gallery, draw_panels, export_pictures
from stillbox.evaluation.pictures import truth_marks
from stillbox.evaluation.report import ReportPicture
from stillbox.evaluation.scores import score
from stillbox.experiment.schema import Evaluation
from tests.evaluation.builders import result, truth
from tests.helpers import read_json, refused
from tests.inputs.helpers import jpeg

NAMES = {1: "cat"}
GRAY = np.full((450, 600, 3), 128, np.uint8)
BOX = [100, 100, 300, 400]


def evaluation(images=5, boxes=2):
    """An evaluation of so many images, each with its boxes found."""
    ids = "abcdefghij"[:images]
    image_boxes = [BOX] * boxes
    return SimpleNamespace(
        records=tuple(range(images)),
        truths=tuple(truth(name, image_boxes) for name in ids),
        results=tuple(result(name, image_boxes, [0.9, 0.4][:boxes]) for name in ids),
        shown_from=lambda least: 0.9 if least is None else least,
    )


def side_by_side(image, expected, detections, names, settings):
    panels = draw_panels(expected, detections, names, settings, settings.min_score or 0.5)
    return ReportPicture(image=image, panels=panels, name="", about="").picture


class Source:
    def example(self, record):
        return SimpleNamespace(encoded=jpeg(GRAY[:90, :120]))


def test_the_gallery_is_spread_evenly_and_captioned():
    shown = list(draw_gallery(evaluation(), Source(), NAMES, Evaluation(num_visualizations=3)))
    assert [picture.name for picture in shown] == ["a", "c", "e"]
    assert shown[1].about == (
        "2 boxes in the ground truth, 1 detection with a score of at least 0.9"
    )
    assert all(picture.picture.dtype == np.uint8 for picture in shown)


def test_a_caption_counts_detections_that_are_not_drawn():
    settings = Evaluation(num_visualizations=1, max_boxes_drawn=1, min_score=0.3)
    (shown,) = draw_gallery(evaluation(), Source(), NAMES, settings)
    assert shown.about.endswith(
        "2 detections with a score of at least 0.3, the best 1 of them drawn"
    )


@pytest.mark.parametrize(("wanted", "count", "drawn"), [(50, None, 5), (0, None, 0), (50, 2, 2)])
def test_the_number_of_pictures(wanted, count, drawn):
    settings = Evaluation(num_visualizations=wanted)
    assert len(list(draw_gallery(evaluation(), Source(), NAMES, settings, count=count))) == drawn


def test_side_by_side_shows_both_halves_under_captions():
    drawn = side_by_side(GRAY, truth("1", [[9, 9, 99, 99]]), result("1"), NAMES, Evaluation())
    gap = 450 // 50
    assert drawn.shape[1] == 2 * 600 + gap
    assert drawn.shape[0] > 450
    assert (drawn[: drawn.shape[0] - 450, :600] < 100).any()  # the caption's ink
    assert (drawn[100:, 600 : 600 + gap] == 255).all()


def right_half(settings, detection=()):
    drawn = side_by_side(GRAY, truth("1", [BOX]), result("1", *detection), NAMES, settings)
    return drawn[-450:, -600:]


def test_the_ground_truth_is_drawn_among_the_predictions_in_its_colour():
    assert (right_half(Evaluation()) == 128).all()
    settings = Evaluation(draw_truth_on_predictions=True, truth_color="#ff0080")
    assert tuple(right_half(settings)[200, 100]) == (255, 0, 128)
    black = right_half(Evaluation(draw_truth_on_predictions=True))
    assert tuple(black[200, 100]) == (0, 0, 0)


def test_labels_and_number_of_boxes_follow_the_settings():
    two = ([BOX, [10, 10, 50, 50]], [0.9, 0.8])

    def painted(**fields):
        return (right_half(Evaluation(**fields), two) != 128).any(axis=2).sum()

    everything = painted()
    assert painted(show_labels=False) < everything
    assert painted(show_scores=False) < everything
    assert painted(show_labels=False, show_scores=False) < painted(show_labels=False)
    assert painted(min_score=0.85) < everything
    assert painted(max_boxes_drawn=1) == painted(min_score=0.85)
    assert painted(min_score=0.95) == 0


def test_labels_are_left_out_of_the_ground_truth_too():
    drawn = side_by_side(GRAY, truth("1", [BOX]), result("1"), NAMES, Evaluation(show_labels=False))
    labelled = side_by_side(GRAY, truth("1", [BOX]), result("1"), NAMES, Evaluation())
    assert truth_marks(truth("1", [BOX]), NAMES)[0].text == "cat"
    assert (drawn[-450:, :600] != 128).sum() < (labelled[-450:, :600] != 128).sum()


@pytest.mark.parametrize(
    ("by_image", "names"),
    [
        (False, ["export-image-0.png", "export-image-1.png"]),
        (True, ["export-image-0-a_b.jpg.png", "export-image-1-7.png"]),
    ],
)
def test_pictures_are_exported_under_the_original_s_names(tmp_path, by_image, names):
    shown = [SimpleNamespace(picture=GRAY, name=name) for name in ("a/b.jpg", "7")]
    folder = tmp_path / "deep/out"
    settings = Evaluation(pictures_directory="deep/out", name_pictures_by_image=by_image)
    export_pictures(shown, settings, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == names
    with Image.open(folder / names[0]) as image:
        assert (image.format, image.size) == ("PNG", (600, 450))


def test_without_a_folder_nothing_is_exported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    export_pictures([SimpleNamespace(picture=GRAY, name="a")], Evaluation(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    settings = Evaluation(pictures_directory="file/pictures")
    with refused("file/pictures/export-image-0.png"):
        export_pictures([SimpleNamespace(picture=GRAY, name="a")], settings, tmp_path)


@pytest.mark.parametrize(
    "place", ["{root}/private", "../private", "x/../../private", "link", "a/b"]
)
def test_pictures_stay_below_the_folder_of_the_results(tmp_path, place):
    private, results = tmp_path / "private", tmp_path / "results"
    for folder in (private, results / "a"):
        folder.mkdir(parents=True)
    (private / "export-image-0.png").write_text("mine")
    for link in ("link", "a/b"):
        (results / link).symlink_to(private)
    settings = Evaluation(pictures_directory=place.format(root=tmp_path))
    with suppress(UserError):
        export_pictures([SimpleNamespace(picture=GRAY, name="a")], settings, results)
    assert {path: path.read_text() for path in private.iterdir()} == {
        private / "export-image-0.png": "mine"
    }
    # An absolute path is taken below the folder.
    assert bool(list(results.rglob("*.png"))) == (place[0] == "{")


LEFT, LEFT_HALF, RIGHT = [10, 10, 60, 60], [10, 10, 60, 28], [100, 100, 160, 180]
AWKWARD_NAMES = {1: 'cat, "small"', 5: "=owl\n"}
TRUTHS = (truth("a", [LEFT, RIGHT], [1, 5]), truth("b", [RIGHT, LEFT], [1, 5]))
# In a: right, badly placed. In b: right, something on the background, and one object missed.
RESULTS = (
    result("a", [LEFT, [100, 100, 160, 130]], [0.9, 0.85], [1, 5]),
    result("b", [RIGHT, [0, 150, 40, 190]], [0.8, 0.95], [1, 1]),
)


def read_rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_the_figures_are_numbers_of_the_analysis(tmp_path):
    write_figures(analyse(TRUTHS, RESULTS, AWKWARD_NAMES), tmp_path)
    written = read_json(tmp_path / "report.json")
    assert (written["iou"], written["threshold"]) == (0.5, 0.8)
    together = {key: written["all_classes"][key] for key in ("objects", "found", "correct", "F1")}
    assert together == {"objects": 4, "found": 4, "correct": 2, "F1": 0.5}
    owl = written["per_class"]["=owl\n"]
    assert (owl["id"], owl["objects"], owl["threshold"], owl["precision"]) == (5, 2, None, None)
    counts = {
        kind: mistake["count"] for kind, mistake in written["mistakes"].items() if mistake["count"]
    }
    assert counts == {"misplaced": 1, "background": 1, "missed": 1}
    assert written["confusion"]["counts"] == [[2, 0, 0], [0, 0, 2], [1, 1, 0]]
    assert written["sizes"]["medium"]["objects"] == 4
    # Above the highest score there is no detection and no precision: null, not NaN.
    assert written["all_classes"]["curve"]["precision"][-1] is None


def test_the_tables_have_the_same_figures(tmp_path):
    write_figures(analyse(TRUTHS, RESULTS, AWKWARD_NAMES), tmp_path)
    head, cat, owl = read_rows(tmp_path / "csv/classes.csv")
    assert " ".join(head) == "class id objects threshold found correct precision recall F1"
    assert cat == ['cat, "small"', "1", "2", "0.8", "3", "2", str(2 / 3), "1.0", "0.8"]
    assert owl[0] == "'=owl\n"  # no formula of a spreadsheet
    head, background, misplaced, missed = read_rows(tmp_path / "csv/mistakes.csv")
    assert background[:4] == ["background", "b", 'cat, "small"', "0.95"]
    assert background[8:] == [""] * 5
    assert misplaced == [
        *("misplaced", "a", "'=owl\n", "0.85", "100.0", "100.0", "160.0", "130.0"),
        *("'=owl\n", "100.0", "100.0", "160.0", "180.0"),
    ]
    assert missed[:3] == ["missed", "b", ""]
    assert missed[8:] == ["'=owl\n", "10.0", "10.0", "60.0", "60.0"]
    assert read_rows(tmp_path / "csv/confusion.csv")[1] == ['cat, "small"', "2", "0", "0"]
    assert len(read_rows(tmp_path / "csv/confidence.csv")) == 1 + 3 * 101
    sizes = read_rows(tmp_path / "csv/sizes.csv")
    assert [row[0] for row in sizes[1:4]] == ["small", "medium", "large"]


def many_classes(classes, occurring):
    """Sixty images with objects and detections of so many classes."""
    rng = np.random.default_rng(0)
    names = {number: f"class {number}" for number in range(1, classes + 1)}
    places = [[0, 20 * k, 10, 20 * k + 10] for k in range(100)]
    ids = rng.permutation(np.arange(6000) % occurring + 1).reshape(60, 100)
    scores = rng.uniform(size=(60, 100))
    truths = [truth(str(k), places, ids[k]) for k in range(60)]
    results = [result(str(k), places, scores[k], rng.permutation(ids[k])) for k in range(60)]
    return truths, results, names


def written_bytes(folder, arguments):
    write_figures(analyse(*arguments), folder)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def cost_of_classes(folder, classes):
    """Bytes of files and of memory."""
    tracemalloc.start()
    size = written_bytes(folder / str(classes), many_classes(classes, classes))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return size, peak


def test_files_and_memory_are_linear_in_the_classes_that_occur(tmp_path):
    # A whole matrix of 6,000 classes has 36 million numbers, 288 MB, one of 1,500 has 18 MB.
    few, many = cost_of_classes(tmp_path, 1500), cost_of_classes(tmp_path, 6000)
    assert all(large < 4.4 * small for small, large in zip(few, many, strict=True))
    six = written_bytes(tmp_path / "six", many_classes(6, 6))
    absent = written_bytes(tmp_path / "absent", many_classes(4000, 6))
    assert absent - six < 4000 * 500


def test_a_matrix_of_many_classes_is_written_as_its_cells(tmp_path, monkeypatch):
    monkeypatch.setattr(figures_files, "_MOST_IN_MATRIX", 1)
    analysis = analyse(TRUTHS, RESULTS, AWKWARD_NAMES)
    write_figures(analysis, tmp_path)
    confusion = read_json(tmp_path / "report.json")["confusion"]
    assert confusion["counts"] is None
    assert confusion["cells"] == [[0, 0, 2], [1, 2, 2], [2, 0, 1], [2, 1, 1]]
    rows = read_rows(tmp_path / "csv/confusion.csv")
    assert rows == [
        ["object", "detection", "count"],
        ['cat, "small"', 'cat, "small"', "2"],
        ["'=owl\n", "missed", "2"],
        ["background", 'cat, "small"', "1"],
        ["background", "'=owl\n", "1"],
    ]


def test_classes_that_do_not_occur_are_not_in_the_matrix():
    written = figures(analyse(TRUTHS, RESULTS, AWKWARD_NAMES | {7: "absent"}))
    assert written["confusion"]["classes"] == ['cat, "small"', "=owl\n", None]
    assert written["confusion"]["counts"] == [[2, 0, 0], [0, 0, 2], [1, 1, 0]]
    assert written["per_class"]["absent"]["curve"] is None


def test_without_detections_every_number_is_null():
    written = figures(analyse([truth("a")], [], AWKWARD_NAMES))
    assert (written["threshold"], written["AP50"]) == (None, None)
    assert written["histograms"]["width_by_height"]["edges"] == []
    json.dumps(written, allow_nan=False)


def test_a_folder_that_figures_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / "csv").write_text("")
    with refused("csv/classes.csv"):
        write_figures(analyse(TRUTHS, RESULTS, AWKWARD_NAMES), tmp_path)


@pytest.fixture
def analysed():
    return EvaluationResult(
        scores=score(TRUTHS, RESULTS, AWKWARD_NAMES),
        records=(4, 7),
        truths=TRUTHS,
        results=RESULTS,
        left_out=0,
        warnings=(),
        timings=Timings(),
        class_names=AWKWARD_NAMES,
    )


class GreySource:
    """Images that are as bright as the number of their record."""

    def example(self, record):
        return SimpleNamespace(encoded=jpeg(np.full((200, 200, 3), 10 * record, np.uint8)))


def test_mistakes_are_cut_out_of_their_images(analysed):
    cutouts = list(cut_out(analysed, GreySource(), AWKWARD_NAMES, 3))
    assert [cutout.kind for cutout in cutouts] == ["misplaced", "background", "missed"]
    misplaced, background, missed = cutouts
    assert misplaced.about == "=owl\n 0.85, object: =owl\n, image a"
    assert background.about == 'cat, "small" 0.95, image b'
    assert missed.about == "object: =owl\n, image b"
    means = [cutout.image.mean() for cutout in (misplaced, background)]
    assert means == pytest.approx([40, 70], abs=3)
    # The object, 60 high and 80 wide, with 80 pixels around its middle up to the edge.
    assert misplaced.image.shape[:2] == (150, 140)
    expected, detected = misplaced.marks
    assert (expected.dashed, detected.dashed) == (True, False)
    assert (expected.box, detected.box) == ((50, 40, 110, 120), (50, 40, 110, 70))
    # At the edge of the image, the window ends there.
    assert missed.image.shape[:2] == (85, 85)
    assert list(cut_out(analysed, GreySource(), AWKWARD_NAMES, 0)) == []


def test_pictures_show_what_is_found_at_the_best_threshold(analysed):
    assert (analysed.shown_from(None), analysed.shown_from(0.3)) == (0.8, 0.3)
