"""The detections that are returned: one class per object, scores, classes, folders."""

import os

import numpy as np
import pytest
from PIL import Image

from stillbox.errors import UserError
from stillbox.evaluation.results import RawDetections
from stillbox.evaluation.tiling import Tiling
from stillbox.image_kind import RGB_8
from stillbox.predicting.backend import Prepared
from stillbox.predicting.images import check_output, list_inputs
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import Selection
from stillbox.references import Parameter
from tests.helpers import refusal

BLANK = np.zeros((100, 200, 3), np.uint8)


class Cards:
    """Finds three classes in one place, and another object that touches them."""

    class_names = {1: "nine", 2: "ten", 3: "king of hearts"}  # noqa: RUF012
    source = "cards"
    max_detections = 10
    batch_sizes = tiling = None
    image_kind = RGB_8
    boxes = np.array([[10, 10, 90, 60], [11, 10, 91, 60], [60, 10, 90, 90], [12, 10, 90, 61.0]])
    scores = np.array([0.86, 0.83, 0.5, 0.46])
    class_ids = np.array([1, 2, 2, 3])

    def prepare(self, image, where=None):
        return Prepared(image, image.shape[:2], image.shape[:2])

    def warm_up(self, batch_size):
        pass

    def run(self, images):
        return [RawDetections(self.boxes, self.scores, self.class_ids)] * len(images)


def names(image=BLANK, **choice):
    return Predictor(Cards()).predict(image, **choice).names


def test_an_object_has_the_class_with_the_highest_score():
    assert names() == ["nine", "ten"]
    assert names(classes_per_object="all") == ["nine", "ten", "ten", "king of hearts"]


def test_only_boxes_that_overlap_by_more_than_the_threshold_are_one_object():
    # IoU with the first box: 3950 / 4050, 1500 / 4900, 3900 / 4078.
    assert names(iou=0.96) == ["nine", "ten", "king of hearts"]
    assert names(iou=0.99) == ["nine", "ten", "ten", "king of hearts"]
    assert names(iou=0.1) == ["nine"]


def test_classes_are_left_out_after_the_suppression():
    assert names(classes=["king of hearts"]) == []
    assert names(classes=["ten"]) == ["ten"]
    assert names(classes={"ten"}) == ["ten"]
    assert names(classes=["ten"], classes_per_object="all") == ["ten", "ten"]


def test_tiles_give_one_class_for_each_object_too():
    predictor = Predictor(Cards(), tiling=Tiling(tile=400))
    assert predictor.predict(BLANK).names == ["nine", "ten"]


@pytest.mark.parametrize(
    ("choice", "sentence", "fix"),
    [
        ({"classes": ["king"]}, "the model has no class 'king'", "king of hearts"),
        ({"classes": "ten"}, "one name, not a list", 'give ["ten"]'),
        ({"classes_per_object": "two"}, "there is no 'two'", "one"),
        ({"iou": 1.5}, "1.5 is no overlap", "0 to 1"),
        ({"min_score": float("nan")}, "nan is no score", "0 to 1"),
    ],
)
def test_impossible_choices_are_refused(choice, sentence, fix):
    with pytest.raises(UserError, match=sentence) as caught:
        names(**choice)
    assert caught.value.about == Parameter(next(iter(choice)))
    assert fix in caught.value.fix


def test_the_least_score_is_that_of_the_command():
    detections = Predictor(Cards()).predict(BLANK)
    assert Selection().min_score == 0.3
    assert min(detections.scores) >= 0.3


@pytest.fixture
def photos(tmp_path):
    for name in ("10.png", "2.png"):
        Image.fromarray(BLANK).save(tmp_path / name)
    return tmp_path


def sources(detections):
    return [detection.source.rpartition("/")[2] for detection in detections]


def test_a_folder_and_a_pattern_are_their_images(photos):
    (photos / "notes.txt").write_text("no image")
    predictor = Predictor(Cards())
    assert sources(predictor.predict(photos)) == ["2.png", "10.png"]
    assert sources(predictor.predict(f"{photos}/*.png")) == ["2.png", "10.png"]
    assert sources(predictor.predict([f"{photos}/1*", photos / "2.png"])) == ["10.png", "2.png"]
    assert predictor.predict(photos / "2.png").source == str(photos / "2.png")


def test_a_folder_without_images_or_with_videos_is_refused(photos, tmp_path_factory):
    empty = tmp_path_factory.mktemp("nothing")
    with pytest.raises(UserError, match="there is no image") as caught:
        Predictor(Cards()).predict(empty)
    assert "FOLDER/**/*.jpg" in caught.value.fix
    (photos / "clip.mp4").write_bytes(b"")
    with pytest.raises(UserError, match="there are videos among the images"):
        Predictor(Cards()).predict(photos)


# ---- Which files paths, folders and patterns mean, and in which order ----------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with images, a video and other files in folders."""
    monkeypatch.chdir(tmp_path)
    for name in (
        *("photos/10.jpg", "photos/2.JPG", "photos/1.png", "photos/²x.jpg", "photos/.hidden.jpg"),
        *("photos/notes.txt", "photos/clip.mp4", "photos/deep/3.jpg", "photos/.git/4.jpg"),
        *("only/deep/5.jpg", "text/a.txt", "photos/[1].jpg"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "photos/pipe.jpg")
    return tmp_path


def names_of(paths):
    return [str(path) for path in paths]


def test_a_folder_in_natural_order(folder):
    inputs = list_inputs(["photos"])
    expected = ["photos/1.png", "photos/2.JPG", "photos/10.jpg", "photos/[1].jpg", "photos/²x.jpg"]
    assert names_of(inputs.images) == expected
    assert names_of(inputs.videos) == ["photos/clip.mp4"]
    assert inputs.passed_over == 1  # notes.txt; hidden files and a pipe do not count


def test_subfolders_and_patterns(folder):
    assert "photos/deep/3.jpg" in names_of(list_inputs(["photos"], recursive=True).images)
    assert names_of(list_inputs(["photos/[0-9]*.jpg"]).images) == ["photos/10.jpg"]
    assert names_of(list_inputs(["**/*.jpg"]).images)[-2:] == ["photos/deep/3.jpg", "photos/²x.jpg"]
    everything = list_inputs(["photos/*"])
    assert (len(everything.images), everything.passed_over) == (5, 1)
    assert names_of(list_inputs(["photos/[1].jpg"]).images) == ["photos/[1].jpg"]


def test_each_file_comes_once_and_a_named_one_needs_no_suffix(folder):
    inputs = list_inputs(["text/a.txt", "photos/1.png", "photos/*.png", "./photos/1.png"])
    assert names_of(inputs.images) == ["text/a.txt", "photos/1.png"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("only", "add recursive=: its subfolders hold some"),
        ("text", "the folder holds no image or video"),
        ("photos/*.webp", "matches no image or video"),
        ("text/*", "matches no image or video"),
        ("phot", "there is no such image file"),
    ],
)
def test_words_that_name_nothing_are_refused(folder, word, expected):
    error = refusal(list_inputs, [word, "photos"])
    assert expected in str(error)
    assert error.where == word


@pytest.mark.parametrize(
    ("words", "output", "recursive", "allowed"),
    [
        (["photos"], "photos", False, False),
        (["photos"], "photos/out", False, True),
        (["photos"], "photos/out", True, False),
        (["photos"], "only/../photos/deep", True, False),
        (["photos/*.jpg"], "photos", False, False),
        (["."], "predictions", False, True),
        (["photos"], "photos2", True, True),
    ],
)
def test_results_do_not_come_among_the_images(folder, words, output, recursive, allowed):
    (folder / "0.jpg").touch()
    inputs = list_inputs(words, recursive=recursive)
    try:
        check_output(folder / output, words, inputs.images, recursive=recursive)
    except UserError as error:
        assert not allowed, error
    else:
        assert allowed
