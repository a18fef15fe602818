"""Which images are drawn, what is drawn on them, and the files that they become."""

from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from stillbox.errors import UserError
from stillbox.evaluation.gallery import draw_gallery, draw_panels, export_pictures
from stillbox.evaluation.pictures import truth_marks
from stillbox.evaluation.report import ReportPicture
from stillbox.experiment.schema import Evaluation
from tests.evaluation.builders import result, truth
from tests.inputs.helpers import jpeg

NAMES = {1: "cat"}
GRAY = np.full((450, 600, 3), 128, np.uint8)
BOX = [100, 100, 300, 400]


def evaluation(images=5, boxes=2):
    """An evaluation of so many images, each with its boxes found."""
    ids = "abcdefghij"[:images]
    found = [BOX] * boxes
    return SimpleNamespace(
        records=tuple(range(images)),
        truths=tuple(truth(name, found) for name in ids),
        results=tuple(result(name, found, [0.9, 0.4][:boxes]) for name in ids),
        shown_from=lambda least: 0.9 if least is None else least,
    )


def side_by_side(image, expected, found, names, settings):
    panels = draw_panels(expected, found, names, settings, settings.min_score or 0.5)
    return ReportPicture(image=image, panels=panels, name="", about="").picture


class Source:
    def example(self, record):
        return SimpleNamespace(encoded=jpeg(GRAY[:90, :120]))


def test_the_gallery_is_spread_evenly_and_captioned():
    shown = list(draw_gallery(evaluation(), Source(), NAMES, Evaluation(num_visualizations=3)))
    assert [picture.name for picture in shown] == ["a", "c", "e"]
    assert shown[1].about == "2 boxes in the ground truth, 1 found with a score of at least 0.9"
    assert all(picture.picture.dtype == np.uint8 for picture in shown)


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


def right_half(settings, found=()):
    drawn = side_by_side(GRAY, truth("1", [BOX]), result("1", *found), NAMES, settings)
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
    with pytest.raises(UserError, match="cannot be written"):
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
