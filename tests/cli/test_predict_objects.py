"""Which objects `stillbox predict` takes, their crops and their labels, without a model."""

import json

import numpy as np
import pytest
from PIL import Image

from stillbox.cli.predict_files import describe_objects
from stillbox.predicting.images import read_image
from stillbox.predicting.object_files import class_folders
from stillbox.predicting.predictor import Predictor
from stillbox.records.folder import convert_folder
from tests.predicting.test_selection import Cards
from tests.predicting.test_video import write_video
from tests.records.test_folder import examples

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture
def cards(monkeypatch):
    """Every model finds the cards."""
    monkeypatch.setattr(
        "stillbox.api.load", lambda *words, tiling, **others: Predictor(Cards(), tiling=tiling)
    )


@pytest.fixture
def photos(here, cards):
    (here / "photos").mkdir()
    for name in ("a.png", "b.png"):
        pixels = np.random.default_rng(0).integers(0, 256, (100, 200, 3), np.uint8)
        Image.fromarray(pixels).save(here / "photos" / name)
    return here / "photos"


def classes(here):
    entries = json.loads((here / "predictions/predictions.json").read_text())
    return [one["class"] for one in entries[0]["detections"]]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), ["nine", "ten"]),
        (("--classes-per-object", "all"), ["nine", "ten", "ten", "king of hearts"]),
        (("--iou", "0.1"), ["nine"]),
        (("--classes", "ten"), ["ten"]),
        (("--classes", "ten, nine", "--min-score", "0.7"), ["nine"]),
        (("--classes", "ten", "--classes", "nine"), ["nine", "ten"]),
    ],
)
def test_the_flags_choose_the_objects(stillbox, photos, here, flags, expected):
    code, out, _ = stillbox("predict", "model", "photos", *flags)
    assert code == 0
    assert classes(here) == expected
    assert f"photos/a.png: {describe_objects(expected)} -> predictions/a.jpg" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--classes", "tenn"), "--classes: the model has no class 'tenn'"),
        (("--iou", "2"), "--iou: 2 is no overlap"),
        (("--min-score", "nan"), "--min-score: nan is no score"),
        (("--classes-per-object", "all", "--iou", "0.5"), "--iou: every class has boxes of"),
    ],
)
def test_impossible_choices_are_refused(refused, photos, here, flags, message):
    assert message in refused("predict", "model", "photos", *flags)
    assert not (here / "predictions").exists()


def test_a_line_names_the_classes_and_the_most_frequent_first():
    assert describe_objects([]) == "0 objects"
    assert describe_objects(["owl"]) == "1 object (1 owl)"
    assert describe_objects(["owl", "hawk", "hawk"]) == "3 objects (2 hawk, 1 owl)"
    assert describe_objects("abcdefg").endswith("1 e and 2 more classes)")


def test_crops_are_images_of_the_objects(stillbox, refused, photos, here):
    assert stillbox("predict", "model", "photos", "--crops", "--no-pictures").code == 0
    crops = here / "predictions" / "crops"
    files = sorted(str(file.relative_to(crops)) for file in crops.rglob("*.*"))
    assert files == ["nine/a_1.jpg", "nine/b_1.jpg", "ten/a_2.jpg", "ten/b_2.jpg"]
    assert read_image(crops / "nine/a_1.jpg")[0].shape == (80, 50, 3)
    assert read_image(crops / "ten/a_2.jpg")[0].shape == (30, 80, 3)
    message = refused("predict", "model", "photos", "--crops")
    assert "predictions/crops: there are files of an earlier run" in message


def test_crops_of_a_video_have_the_numbers_of_its_frames(stillbox, here, cards):
    write_video(here / "clip.avi", frames=3, size=(100, 200))
    words = ["--crops", "--frame-stride", 2, "--no-pictures", "--classes", "nine"]
    assert stillbox("predict", "model", "clip.avi", *words).code == 0
    files = sorted(file.name for file in (here / "predictions/crops/nine").iterdir())
    assert files == ["clip_000000_1.jpg", "clip_000002_1.jpg"]


def test_folders_of_classes_are_names_of_files_and_differ():
    names = {1: "a/b", 2: "A_B", 3: "..", 4: "", 5: "x" * 300, 6: "Eule \u96fb"}
    folders = class_folders(names)
    assert list(folders.values()) == ["a_b", "A_B_2", "__", "class", "x" * 80, "Eule \u96fb"]


@pytest.fixture
def report(here):
    """A report of the model: the nine counts from .9, the king from .1, the ten has no best."""
    folder = here / "model" / "evaluation"
    folder.mkdir(parents=True)
    thresholds = {"nine": 0.9, "ten": None, "king of hearts": 0.1}
    content = {"per_class": {name: {"threshold": at} for name, at in thresholds.items()}}
    (folder / "report.json").write_text(json.dumps(content))
    return folder / "report.json"


@pytest.mark.parametrize("form", ["yolo", "coco", "voc"])
def test_labels_are_a_folder_to_train_on(stillbox, photos, here, form):
    code, out, err = stillbox("predict", "model", "photos", "--labels", form)
    assert code == 0
    assert f"predictions/labels: 4 boxes in 2 images, as {form}" in out
    assert "no report of `stillbox evaluate`, so of objects of at least --min-score 0.3" in err
    done = convert_folder(here / "predictions/labels", here / "records")
    assert done.format == form
    first = next(iter(examples(done, "train").values()))
    np.testing.assert_allclose(
        first.boxes[0], [0.1, 0.05, 0.9, 0.3], atol=1e-5, err_msg=str(first.boxes)
    )
    assert first.encoded == (photos / "a.png").read_bytes()


def test_labels_have_the_best_threshold_of_each_class(stillbox, photos, here, report):
    words = ["--labels", "label_studio", "--classes-per-object", "all"]
    code, _, err = stillbox("predict", "model", "photos", *words)
    assert code == 0
    assert "labels: least scores of model/evaluation: nine 0.90, king of hearts 0.10" in err
    tasks = json.loads((here / "predictions/labels/tasks_train.json").read_text())
    assert tasks[0]["data"] == {"image": "/data/local-files/?d=images/train/a.png"}
    (made,) = tasks[0]["predictions"]
    labels = [one["value"]["rectanglelabels"] for one in made["result"]]
    assert labels == [["ten"], ["ten"], ["king of hearts"]]
    assert made["result"][0]["score"] == 0.83
    # The lists and pictures have the least score of --min-score all the same.
    assert classes(here) == ["nine", "ten", "ten", "king of hearts"]
    assert (here / "predictions/labels/images/train/a.png").is_file()


def test_boxes_for_cvat_are_marked_as_found_by_a_model(stillbox, photos, here):
    assert stillbox("predict", "model", "photos", "--labels", "cvat").code == 0
    text = (here / "predictions/labels/annotations_train.xml").read_text()
    assert 'name="a.png"' in text
    assert '<box label="nine" source="auto" occluded="0" xtl="10.0' in text


def test_labels_that_may_be_corrected_are_not_replaced(stillbox, refused, photos, here, report):
    (here / "predictions/labels").mkdir(parents=True)
    assert stillbox("predict", "model", "photos", "--labels", "yolo").code == 0
    message = refused("predict", "model", "photos", "--labels", "yolo")
    assert "predictions/labels: there are files of an earlier run" in message
    report.write_text("[]")
    message = refused("predict", "model", "photos", "--labels", "yolo", "--output", "other")
    assert "this is no report of `stillbox evaluate`" in message


def test_labels_of_a_video_are_refused(refused, here, cards):
    write_video(here / "clip.avi", frames=1)
    assert "labels are of images" in refused("predict", "model", "clip.avi", "--labels", "yolo")
