"""The figures of a report as JSON and CSV, and the mistakes cut out of their images."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.evaluation.analysis import analyse
from stillbox.evaluation.cutouts import cut_out
from stillbox.evaluation.evaluator import EvaluationResult, Timings
from stillbox.evaluation.figures_files import figures, write_figures
from stillbox.evaluation.scores import score
from tests.evaluation.builders import result, truth
from tests.inputs.helpers import jpeg

BOX, HALF, OTHER = [10, 10, 60, 60], [10, 10, 60, 28], [100, 100, 160, 180]
NAMES = {1: 'cat, "small"', 5: "=owl\n"}
TRUTHS = (truth("a", [BOX, OTHER], [1, 5]), truth("b", [OTHER, BOX], [1, 5]))
# In a: right, badly placed. In b: right, something on the background, and one object missed.
RESULTS = (
    result("a", [BOX, [100, 100, 160, 130]], [0.9, 0.85], [1, 5]),
    result("b", [OTHER, [0, 150, 40, 190]], [0.8, 0.95], [1, 1]),
)


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_the_figures_are_numbers_of_the_analysis(tmp_path):
    write_figures(analyse(TRUTHS, RESULTS, NAMES), tmp_path)
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert written["iou"] == 0.5
    assert written["threshold"] == 0.8
    together = {key: written["all_classes"][key] for key in ("objects", "found", "correct", "F1")}
    assert together == {"objects": 4, "found": 4, "correct": 2, "F1": 0.5}
    owl = written["per_class"]["=owl\n"]
    assert (owl["id"], owl["objects"], owl["threshold"], owl["precision"]) == (5, 2, None, None)
    assert {kind: one["count"] for kind, one in written["mistakes"].items() if one["count"]} == {
        "misplaced": 1,
        "background": 1,
        "missed": 1,
    }
    assert written["confusion"]["counts"] == [[2, 0, 0], [0, 0, 2], [1, 1, 0]]
    assert written["sizes"]["medium"]["objects"] == 4
    # Above the highest score nothing is found, which has no precision: null, not NaN.
    assert written["all_classes"]["curve"]["precision"][-1] is None


def test_the_tables_have_the_same_figures(tmp_path):
    write_figures(analyse(TRUTHS, RESULTS, NAMES), tmp_path)
    head, cat, owl = read(tmp_path / "csv/classes.csv")
    assert dict(zip(head, cat, strict=True)) == {
        "class": 'cat, "small"',
        "id": "1",
        "objects": "2",
        "threshold": "0.8",
        "found": "3",
        "correct": "2",
        "precision": str(2 / 3),
        "recall": "1.0",
        "F1": "0.8",
    }
    assert owl[0] == "'=owl\n"  # no formula of a spreadsheet
    head, background, misplaced, missed = read(tmp_path / "csv/mistakes.csv")
    assert background[:4] == ["background", "b", 'cat, "small"', "0.95"]
    assert background[8:] == [""] * 5
    assert misplaced == [
        *("misplaced", "a", "'=owl\n", "0.85", "100.0", "100.0", "160.0", "130.0"),
        *("'=owl\n", "100.0", "100.0", "160.0", "180.0"),
    ]
    assert missed[:3] == ["missed", "b", ""]
    assert missed[8:] == ["'=owl\n", "10.0", "10.0", "60.0", "60.0"]
    assert read(tmp_path / "csv/confusion.csv")[1] == ['cat, "small"', "2", "0", "0"]
    assert len(read(tmp_path / "csv/confidence.csv")) == 1 + 3 * 101
    assert [row[0] for row in read(tmp_path / "csv/sizes.csv")][1:4] == ["small", "medium", "large"]


def test_nothing_found_is_null_throughout():
    written = figures(analyse([truth("a")], [], NAMES))
    assert written["threshold"] is None
    assert written["AP50"] is None
    assert written["histograms"]["width_by_height"]["edges"] == []
    json.dumps(written, allow_nan=False)


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / "csv").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_figures(analyse(TRUTHS, RESULTS, NAMES), tmp_path)


@pytest.fixture
def evaluation():
    return EvaluationResult(
        scores=score(TRUTHS, RESULTS, NAMES),
        records=(4, 7),
        truths=TRUTHS,
        results=RESULTS,
        left_out=0,
        warnings=(),
        timings=Timings(),
        class_names=NAMES,
    )


class Source:
    """Images that are as bright as the number of their record."""

    def example(self, record):
        return SimpleNamespace(encoded=jpeg(np.full((200, 200, 3), 10 * record, np.uint8)))


def test_mistakes_are_cut_out_of_their_images(evaluation):
    cutouts = list(cut_out(evaluation, Source(), NAMES, 3))
    assert [one.kind for one in cutouts] == ["misplaced", "background", "missed"]
    misplaced, background, missed = cutouts
    assert misplaced.about == "=owl\n 0.85, object: =owl\n, image a"
    assert background.about == 'cat, "small" 0.95, image b'
    assert missed.about == "object: =owl\n, image b"
    assert abs(int(misplaced.image.mean()) - 40) <= 2
    assert abs(int(background.image.mean()) - 70) <= 2
    # The object, 60 high and 80 wide, with 80 pixels around its middle up to the edge.
    assert misplaced.image.shape[:2] == (150, 140)
    expected, found = misplaced.marks
    assert (expected.dashed, found.dashed) == (True, False)
    assert expected.box == (50, 40, 110, 120)
    assert found.box == (50, 40, 110, 70)
    # At the edge of the image, the window ends there.
    assert missed.image.shape[:2] == (85, 85)
    assert list(cut_out(evaluation, Source(), NAMES, 0)) == []


def test_pictures_show_what_is_found_at_the_best_threshold(evaluation):
    assert evaluation.shown_from(None) == 0.8
    assert evaluation.shown_from(0.3) == 0.3
