"""The detections that are returned: one class per object, scores, classes, folders."""

import numpy as np
import pytest
from PIL import Image

from stillbox.errors import UserError
from stillbox.predicting.backend import Prepared, RawDetections
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.scoring import _detect
from stillbox.predicting.selection import Selection
from stillbox.predicting.tiling import Tiling

BLANK = np.zeros((100, 200, 3), np.uint8)


class Cards:
    """Finds three classes in one place, and another object that touches them."""

    class_names = {1: "nine", 2: "ten", 3: "king of hearts"}  # noqa: RUF012
    source = "cards"
    max_detections = 10
    batch_sizes = None
    boxes = np.array([[10, 10, 90, 60], [11, 10, 91, 60], [60, 10, 90, 90], [12, 10, 90, 61.0]])
    scores = np.array([0.86, 0.83, 0.5, 0.46])
    class_ids = np.array([1, 2, 2, 3])

    def prepare(self, image, where=None):
        return Prepared(image, image.shape[:2], image.shape[:2])

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
    assert names(classes=["ten"], classes_per_object="all") == ["ten", "ten"]


def test_tiles_give_one_class_for_each_object_too():
    predictor = Predictor(Cards(), tiling=Tiling(tile=400))
    assert predictor.predict(BLANK).names == ["nine", "ten"]


@pytest.mark.parametrize(
    ("choice", "what", "fix"),
    [
        ({"classes": ["king"]}, "the model has no class 'king'", "king of hearts"),
        ({"classes": "ten"}, "one name, not a list", 'give ["ten"]'),
        ({"classes_per_object": "two"}, "there is no 'two'", "one"),
        ({"iou": 1.5}, "1.5 is no overlap", "0 to 1"),
        ({"min_score": float("nan")}, "nan is no score", "0 to 1"),
    ],
)
def test_impossible_choices_are_refused(choice, what, fix):
    with pytest.raises(UserError, match=what) as caught:
        names(**choice)
    assert caught.value.where == next(iter(choice))
    assert fix in caught.value.fix


def test_the_least_score_is_that_of_the_command():
    found = Predictor(Cards()).predict(BLANK)
    assert Selection().min_score == 0.3
    assert min(found.scores) >= 0.3


def test_scores_of_a_backend_are_of_all_its_detections():
    class Records:
        slots = type("Slots", (), {"index_of": staticmethod(lambda ids: ids - 1)})
        image = staticmethod(lambda record: BLANK)
        describe = staticmethod(lambda record: "a record")

    assert _detect(Predictor(Cards()), Records, 0).count.tolist() == [4]


@pytest.fixture
def photos(tmp_path):
    for name in ("10.png", "2.png"):
        Image.fromarray(BLANK).save(tmp_path / name)
    return tmp_path


def sources(found):
    return [one.source.rpartition("/")[2] for one in found]


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
