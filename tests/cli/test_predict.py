"""`stillbox predict`: boxes in pixels of the photograph, in JSON and drawn, their crops, labels."""

import json
import shutil
from argparse import Namespace

import cv2
import numpy as np
import pytest
from PIL import Image

from stillbox.api import load
from stillbox.cli.predict_files import _label_folder, describe_objects, picture_names
from stillbox.experiment.schema import Experiment
from stillbox.predicting.files import best_thresholds, class_folders
from stillbox.predicting.images import read_image
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import Selection
from stillbox.records.folder import convert_folder
from stillbox.references import worded
from tests.helpers import refused
from tests.predicting.test_selection import Cards
from tests.predicting.test_video import write_video
from tests.records.test_folder import examples

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture
def photos(scenes, tmp_path):
    """Two photographs."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, source in enumerate(sorted((scenes / "images/val").iterdir())[:2]):
        shutil.copy(source, folder / f"{number}.jpg")
    return folder


def aspect(path):
    """Small images are drawn enlarged, so that only this stays."""
    height, width = cv2.imread(str(path)).shape[:2]
    return width / height


def predictions(folder):
    return json.loads((folder / "predictions.json").read_text())


def test_every_image_gets_an_entry_and_a_picture(stillbox, trained, photos, here):
    paths = [photos / "0.jpg", photos / "1.jpg"]
    out, _ = stillbox("predict", trained, *paths, "--min-score", "0.001").ended()
    entries = predictions(here / "predictions")
    assert [entry["image"] for entry in entries] == [str(path) for path in paths]
    for entry, path in zip(entries, paths, strict=True):
        image = cv2.imread(str(path))
        assert (entry["height"], entry["width"]) == image.shape[:2]
        assert aspect(here / "predictions" / entry["picture"]) == aspect(path)
        described = describe_objects(detection["class"] for detection in entry["detections"])
        assert f"{path}: {described} -> predictions/{path.stem}.jpg" in out
        assert entry["detections"]
        for detection in entry["detections"]:
            assert detection["score"] >= 0.001
            assert detection["class"] in ("disc", "ring", "square", "triangle", "star", "cross")
            ymin, xmin, ymax, xmax = (detection["box"][s] for s in ("ymin", "xmin", "ymax", "xmax"))
            assert 0 <= ymin < ymax <= entry["height"]
            assert 0 <= xmin < xmax <= entry["width"]
        # In pixels: no detector of ours puts all its boxes into one of them.
        assert max(detection["box"]["xmax"] for detection in entry["detections"]) > 2


def test_best_first_and_none_below_the_least_score(stillbox, trained, photos, tmp_path):
    stillbox("predict", trained, photos / "0.jpg", "--min-score", "0", "--output", tmp_path / "all")
    scores = [detection["score"] for detection in predictions(tmp_path / "all")[0]["detections"]]
    assert scores == sorted(scores, reverse=True)
    # Halfway between the extremes: a model of so few steps gives many boxes the same score.
    least = (scores[0] + scores[-1]) / 2
    assert scores[-1] < least < scores[0]
    stillbox(
        *("predict", trained, photos / "0.jpg", "--min-score", least),
        *("--output", tmp_path / "some"),
    )
    some = [detection["score"] for detection in predictions(tmp_path / "some")[0]["detections"]]
    assert 0 < len(some) < len(scores)
    assert some == [score for score in scores if score >= least]


def test_images_of_one_name_from_two_folders_do_not_overwrite_each_other(
    stillbox, trained, photos, tmp_path
):
    other = tmp_path / "other"
    other.mkdir()
    Image.new("RGB", (40, 30)).save(other / "0.jpg")
    out = tmp_path / "out"
    stillbox("predict", trained, photos / "0.jpg", other / "0.jpg", "--output", out)
    first, second = predictions(out)
    assert (first["picture"], second["picture"]) == ("0.jpg", "0_2.jpg")
    assert aspect(out / "0.jpg") == aspect(photos / "0.jpg") != 4 / 3
    assert aspect(out / "0_2.jpg") == 4 / 3


def test_picture_names_never_meet(tmp_path):
    images = ["a/x.jpg", "b/x.jpg", "x_2.jpg", "c/X.jpeg", "y.png"]
    names = picture_names([tmp_path / image for image in images])
    assert names == ["x.jpg", "x_2.jpg", "x_2_2.jpg", "X_3.jpg", "y.jpg"]


def test_a_photograph_is_turned_upright_as_its_tag_says(stillbox, trained, photos, tmp_path):
    upright = Image.open(photos / "0.jpg").resize((80, 48))
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side, to be turned clockwise
    upright.transpose(Image.Transpose.ROTATE_90).save(
        tmp_path / "turned.png", exif=exif.tobytes(), quality=95
    )
    upright.save(tmp_path / "plain.png")
    words = [tmp_path / "turned.png", tmp_path / "plain.png"]
    stillbox("predict", trained, *words, "--min-score", "0", "--output", tmp_path / "out")
    turned, plain = predictions(tmp_path / "out")
    assert (turned["height"], turned["width"]) == (48, 80)
    assert turned["detections"] == plain["detections"]
    pictures = [cv2.imread(str(tmp_path / "out" / name["picture"])) for name in (turned, plain)]
    np.testing.assert_array_equal(*pictures)


def test_gray_and_palette_images_are_images(stillbox, trained, photos, tmp_path):
    image = Image.open(photos / "0.jpg")
    image.convert("L").save(tmp_path / "gray.png")
    image.convert("P").save(tmp_path / "palette.gif")
    words = [tmp_path / "gray.png", tmp_path / "palette.gif", "--output", tmp_path / "out"]
    stillbox("predict", trained, *words).ended()
    assert len(predictions(tmp_path / "out")) == 2


def test_a_missing_file_is_refused_before_anything_is_written(refused, trained, photos, here):
    message = refused("predict", trained, photos / "0.jpg", photos / "9.jpg", photos / "x")
    assert f"{photos}/9.jpg, {photos}/x: there is no such image file" in message
    assert "FOLDER/*.jpg" in message
    assert not (here / "predictions").exists()


@pytest.mark.parametrize("content", [b"", b"a shopping list\n", b"\xff\xd8\xff\xe0 half a JPEG"])
def test_a_file_that_is_no_image_is_refused_by_name(stillbox, trained, here, content):
    (here / "list.jpg").write_bytes(content)
    _, err = stillbox("predict", trained, "list.jpg").ended(2)
    assert "\nstillbox predict: list.jpg: cannot be decoded: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["nowhere", "photos/0.jpg"],
            "nowhere is not a model directory, and a config alone has no weights",
        ),
        (["photos", "photos/0.jpg"], "this is not a model directory"),
        (["model", "photos/0.jpg", "--step", "7"], "there is no checkpoint 7"),
        (["model", "photos/0.jpg", "--step", "x"], "'x' names no checkpoint"),
    ],
)
def test_other_sources_than_models_are_refused(
    refused, trained, photos, monkeypatch, words, expected
):
    monkeypatch.chdir(photos.parent)
    assert expected in refused("predict", *words)


def test_unusable_scores_and_output_folders_are_refused(refused, trained, photos):
    code_line = refused("predict", trained, "0.jpg", "--min-score", "much")
    assert "argument --min-score: 'much' is no finite number" in code_line
    message = refused(
        "predict", trained, photos / "0.jpg", "--output", photos / "0.jpg" / "predictions"
    )
    assert "Not a directory" in message


def test_weights_of_a_file_give_the_detections_of_the_model_directory(
    stillbox, trained, photos, here
):
    stillbox("weights", "save", trained, "--to", "weights.npz")
    config = shutil.copy(trained / "experiment.yaml", "mine.yaml")
    words = [photos / "0.jpg", "--min-score", "0", "--output"]
    stillbox("predict", trained, *words, "directory")
    stillbox("predict", config, "--weights", "weights.npz", *words, "file").ended()
    expected, read = predictions(here / "directory"), predictions(here / "file")
    assert read[0]["detections"] == expected[0]["detections"] != []


def test_weights_without_a_label_map_are_refused_until_one_is_named(
    stillbox, trained, photos, here
):
    stillbox("weights", "save", trained, "--to", "weights.npz")
    config = shutil.copy(trained / "experiment.yaml", "mine.yaml")
    words = ["predict", config, "--weights", "weights.npz", photos / "0.jpg"]
    nameless = ["data.train.label_map=''", "data.evaluation.label_map=''"]
    words += [word for change in nameless for word in ("--set", change)]
    _, err = stillbox(*words).ended(2)
    assert "nothing says what their classes are" in err
    assert "--set data.evaluation.label_map=FILE" in err
    (here / "names.pbtxt").write_text(
        "".join(f"item {{ id: {number} name: 'shape {number}' }}\n" for number in range(1, 7))
    )
    stillbox(*words, "--set", "data.evaluation.label_map=names.pbtxt").ended()


def test_overrides_change_the_suppression(stillbox, trained, photos, here):
    words = ["predict", trained, photos / "0.jpg", "--min-score", "0"]
    limits = [f"model.postprocessing.nms.max_{which}=3" for which in ("total", "per_class")]
    few = [word for limit in limits for word in ("--set", limit)]
    stillbox(*words)
    assert len(predictions(here / "predictions")[0]["detections"]) > 3
    stillbox(*words, *few).ended()
    assert len(predictions(here / "predictions")[0]["detections"]) == 3


@pytest.fixture
def cards(monkeypatch):
    """Every model finds the cards."""
    monkeypatch.setattr(
        "stillbox.api.load", lambda *words, tiling=None, **others: Predictor(Cards(), tiling=tiling)
    )


@pytest.fixture
def drawn_photos(here, cards):
    (here / "drawn_photos").mkdir()
    for name in ("a.png", "b.png"):
        pixels = np.random.default_rng(0).integers(0, 256, (100, 200, 3), np.uint8)
        Image.fromarray(pixels).save(here / "drawn_photos" / name)
    return here / "drawn_photos"


def classes(here):
    entries = json.loads((here / "predictions/predictions.json").read_text())
    return [detection["class"] for detection in entries[0]["detections"]]


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
def test_the_flags_choose_the_objects(stillbox, drawn_photos, here, flags, expected):
    out, _ = stillbox("predict", "model", "drawn_photos", *flags).ended()
    assert classes(here) == expected
    assert f"drawn_photos/a.png: {describe_objects(expected)} -> predictions/a.jpg" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--classes", "tenn"), "--classes: the model has no class 'tenn'"),
        (("--iou", "2"), "--iou: 2 is no overlap"),
        (("--min-score", "nan"), "--min-score: 'nan' is no finite number"),
        (("--classes-per-object", "all", "--iou", "0.5"), "--iou: every class has boxes of"),
    ],
)
def test_impossible_choices_are_refused(refused, drawn_photos, here, flags, message):
    assert message in refused("predict", "model", "drawn_photos", *flags)
    assert not (here / "predictions").exists()


def test_a_line_names_the_classes_and_the_most_frequent_first():
    assert describe_objects([]) == "0 objects"
    assert describe_objects(["owl"]) == "1 object (1 owl)"
    assert describe_objects(["owl", "hawk", "hawk"]) == "3 objects (2 hawk, 1 owl)"
    assert describe_objects("abcdefg").endswith("1 e and 2 more classes)")


def test_crops_are_images_of_the_objects(stillbox, refused, drawn_photos, here):
    stillbox("predict", "model", "drawn_photos", "--crops", "--no-pictures").ended()
    crops = here / "predictions" / "crops"
    files = sorted(str(file.relative_to(crops)) for file in crops.rglob("*.*"))
    assert files == ["nine/a_1.jpg", "nine/b_1.jpg", "ten/a_2.jpg", "ten/b_2.jpg"]
    assert read_image(crops / "nine/a_1.jpg")[0].shape == (80, 50, 3)
    assert read_image(crops / "ten/a_2.jpg")[0].shape == (30, 80, 3)
    message = refused("predict", "model", "drawn_photos", "--crops")
    assert "predictions/crops" in message


def test_crops_of_a_video_have_the_numbers_of_its_frames(stillbox, here, cards):
    write_video(here / "clip.avi", frames=3, size=(100, 200))
    words = ["--crops", "--frame-stride", 2, "--no-pictures", "--classes", "nine"]
    stillbox("predict", "model", "clip.avi", *words).ended()
    files = sorted(file.name for file in (here / "predictions/crops/nine").iterdir())
    assert files == ["clip_000000_1.jpg", "clip_000002_1.jpg"]


def test_a_class_that_the_label_map_lacks_is_named_by_its_id(
    stillbox, drawn_photos, here, monkeypatch
):
    monkeypatch.setattr(Cards, "class_names", {1: "nine", 3: "king of hearts"})
    words = ["--no-pictures", "--crops", "--labels", "yolo"]
    stillbox("predict", "model", "drawn_photos", *words).ended()
    assert classes(here) == ["nine", "class 2"]
    assert (here / "predictions/crops/class 2/a_2.jpg").is_file()
    assert "1: class 2\n" in (here / "predictions/labels/data.yaml").read_text()


def test_folders_of_classes_are_names_of_files_and_differ():
    names = {1: "a/b", 2: "A_B", 3: "..", 4: "", 5: "x" * 300, 6: "Eule \u96fb"}
    folders = class_folders(names)
    assert list(folders.values()) == ["a_b", "A_B_2", "__", "class", "x" * 80, "Eule \u96fb"]


def test_classes_of_one_name_have_thresholds_of_their_own(tmp_path):
    thresholds = {"owl (id 1)": 0.9, "owl (id 2)": 0.2}
    content = {"per_class": {name: {"threshold": at} for name, at in thresholds.items()}}
    (tmp_path / "report.json").write_text(json.dumps(content))
    assert best_thresholds(tmp_path, {1: "owl", 2: "owl"}) == {1: 0.9, 2: 0.2}


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
def test_labels_are_a_folder_to_train_on(stillbox, drawn_photos, here, form):
    out, err = stillbox("predict", "model", "drawn_photos", "--labels", form).ended()
    assert f"predictions/labels: 4 boxes in 2 images, as {form}" in out
    assert "no report of `stillbox evaluate`, so of objects of at least --min-score 0.3" in err
    done = convert_folder(here / "predictions/labels", here / "records")
    assert done.format == form
    first = next(iter(examples(done, "train").values()))
    np.testing.assert_allclose(
        first.boxes[0], [0.1, 0.05, 0.9, 0.3], atol=1e-5, err_msg=str(first.boxes)
    )
    assert first.encoded == (drawn_photos / "a.png").read_bytes()


def test_labels_have_the_best_threshold_of_each_class(stillbox, drawn_photos, here, report):
    words = ["--labels", "label_studio", "--classes-per-object", "all"]
    _, err = stillbox("predict", "model", "drawn_photos", *words).ended()
    assert "labels: least scores of model/evaluation: nine 0.90, king of hearts 0.10" in err
    tasks = json.loads((here / "predictions/labels/tasks_train.json").read_text())
    assert tasks[0]["data"] == {"image": "/data/local-files/?d=images/train/a.png"}
    (made,) = tasks[0]["predictions"]
    labels = [label["value"]["rectanglelabels"] for label in made["result"]]
    assert labels == [["ten"], ["ten"], ["king of hearts"]]
    assert made["result"][0]["score"] == 0.83
    # The lists and pictures have the least score of --min-score all the same.
    assert classes(here) == ["nine", "ten", "ten", "king of hearts"]
    assert (here / "predictions/labels/images/train/a.png").is_file()


def test_a_checkpoint_has_the_report_of_its_model_directory(report, here, capsys):
    (here / "model/checkpoints/2").mkdir(parents=True)
    (here / "model/experiment.yaml").touch()
    arguments = Namespace(labels="yolo", weights=None, config="model/checkpoints/2")
    _label_folder(Namespace(class_names={1: "nine"}), Selection(), arguments, here)
    assert "labels: least scores of model/evaluation: nine 0.90" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("runtime", "named"), [("openvino", "openvino"), ("fastest", "a measured runtime")]
)
def test_a_config_is_named_where_a_runtime_is_refused(runtime, named):
    with refused("mine", named) as refusal:
        load(Experiment(name="mine"), weights="a.npz", runtime=runtime)
    assert refusal.value.where == "mine"
    assert (
        worded(refusal.value.fix) == "`stillbox export mine` with format=onnx, and give its folder"
    )


def test_boxes_for_cvat_are_marked_as_found_by_a_model(stillbox, drawn_photos, here):
    stillbox("predict", "model", "drawn_photos", "--labels", "cvat").ended()
    text = (here / "predictions/labels/annotations_train.xml").read_text()
    assert 'name="a.png"' in text
    assert '<box label="nine" source="auto" occluded="0" xtl="10.0' in text


def test_labels_that_may_be_corrected_are_not_replaced(
    stillbox, refused, drawn_photos, here, report
):
    (here / "predictions/labels").mkdir(parents=True)
    stillbox("predict", "model", "drawn_photos", "--labels", "yolo").ended()
    message = refused("predict", "model", "drawn_photos", "--labels", "yolo")
    assert "predictions/labels" in message
    report.write_text("[]")
    message = refused("predict", "model", "drawn_photos", "--labels", "yolo", "--output", "other")
    assert "this is no report of `stillbox evaluate`" in message


def test_labels_of_a_video_are_refused(refused, here, cards):
    write_video(here / "clip.avi", frames=1)
    assert "labels are of images" in refused("predict", "model", "clip.avi", "--labels", "yolo")
