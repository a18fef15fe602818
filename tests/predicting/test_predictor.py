"""From images of any kind to detections in their pixels; predictions that are not finite."""

import io
import json
import pickle
import sys
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from stillbox.api import load_model
from stillbox.boxes.structures import Detections
from stillbox.boxes.structures import Detections as PaddedDetections
from stillbox.checkpoints.trained import TrainedModel
from stillbox.errors import UserError
from stillbox.evaluation.program import score_program
from stillbox.evaluation.results import NotFiniteError
from stillbox.evaluation.scoring import open_evaluation, score_dataset
from stillbox.evaluation.tiling import Tiling
from stillbox.experiment import schema
from stillbox.models import detector as detectors
from stillbox.models.variables import split_detector
from stillbox.predicting import checkpoint_backend
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.images import read_image, refuse_missing
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.scoring import score_backend
from stillbox.records.label_map import LabelMap, LabelMapItem
from tests.helpers import refused
from tests.inputs.helpers import MODEL, dataset, example
from tests.small import EVERY_DETECTION

RESIZER = schema.FixedShapeResizer(height=32, width=48)
LABEL_MAP = LabelMap(
    (LabelMapItem(1, "barn owl"), LabelMapItem(2, "eagle owl"), LabelMapItem(44, "<owlet>"))
)


class Fake:
    """Finds one box and one padding row in every image, and keeps the images."""

    def __init__(self):
        self.shown = []

    def __call__(self, images, true_sizes):
        self.shown.append((images, true_sizes))
        count = len(images)
        return PaddedDetections(
            boxes=np.tile(np.float32([[0.25, 0.5, 0.75, 1.0], [0, 0, 0, 0]]), (count, 1, 1)),
            scores=np.tile(np.float32([0.9, 0.0]), (count, 1)),
            classes=np.tile(np.int32([2, 0]), (count, 1)),
            count=np.full(count, 1, np.int32),
            anchors=np.zeros((count, 2), np.int32),
        )


class FakeProgram:
    """A program; its compiled form is `Fake`."""

    def __init__(self, fake):
        self.fake = fake

    def prepare(self, params, stats):
        return None

    def bind_weights(self, weights):
        return self.fake


@pytest.fixture
def fake(monkeypatch):
    fake = Fake()
    monkeypatch.setattr(
        checkpoint_backend, "predict_program", lambda experiment, batch_size: FakeProgram(fake)
    )
    return fake


def predictor(resizer=RESIZER, batch_size=1):
    model = schema.OneStage(num_classes=3, class_slots="contiguous", resizer=resizer)
    experiment = schema.Experiment(model=model)
    trained = TrainedModel(experiment, LABEL_MAP, params={}, stats={}, source="test")
    return Predictor(CheckpointBackend(trained), batch_size=batch_size)


@pytest.fixture
def files(tmp_path):
    paths = []
    for number, (height, width) in enumerate([(40, 100), (20, 10), (64, 64)]):
        paths.append(tmp_path / f"{number}.png")
        Image.new("RGB", (width, height), (10 * number, 0, 0)).save(paths[-1])
    return paths


def test_boxes_are_in_pixels_of_each_image_and_classes_are_label_map_ids(fake, files):
    detections = predictor().predict(files)
    assert [detection.source for detection in detections] == [str(path) for path in files]
    assert detections[0].boxes.tolist() == [[10, 50, 30, 100]]
    assert detections[1].boxes.tolist() == [[5, 5, 15, 10]]
    assert detections[0].class_ids.tolist() == [44]
    assert detections[0].names == ["<owlet>"]
    assert detections[0].scores == pytest.approx([0.9])
    assert detections[0].image.shape == (40, 100, 3)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
def test_every_image_comes_once_and_each_batch_is_full(fake, files, batch_size):
    detections = predictor(batch_size=batch_size).predict(files)
    assert [detection.source for detection in detections] == [str(path) for path in files]
    assert {images.shape for images, _ in fake.shown} == {(batch_size, 32, 48, 3)}
    assert {sizes.dtype for _, sizes in fake.shown} == {np.dtype(np.int32)}


def test_a_padding_resizer_returns_the_true_size(fake, files):
    resizer = schema.KeepAspectRatioResizer(min_dimension=20, max_dimension=40)
    predictor(resizer).predict(files[0])
    # 40 x 100: the long side would be 50, so it becomes 40 and the short one 16.
    assert fake.shown[0][1].tolist() == [[16, 40]]


def test_an_image_larger_than_the_canvas_is_named(fake, files):
    with refused("0.png", "40x100") as caught:
        predictor(schema.IdentityResizer(canvas=(33, 40))).predict(files[0])
    assert caught.value.where == str(files[0])
    assert "model.resizer.canvas" in caught.value.fix


@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_image_that_does_not_fit_among_its_tiles_is_passed_over(fake, files, batch_size):
    backend = predictor(schema.IdentityResizer(canvas=(64, 64))).backend
    tiled = Predictor(backend, batch_size=batch_size, tiling=Tiling(tile=32))
    bad = []
    on_bad = lambda path, error: bad.append((path, error.where))  # noqa: E731
    detections = list(tiled.detect(files, read_image, on_bad=on_bad))
    assert [detection.source for detection in detections] == [str(path) for path in files[1:]]
    assert bad == [(files[0], str(files[0]))]


def test_missing_files_are_named(files, tmp_path):
    missing = [tmp_path / f"no_{number}.png" for number in range(7)]
    with pytest.raises(UserError, match="there is no such image file") as caught:
        refuse_missing([*files, *missing])
    assert caught.value.where.endswith("no_4.png and 2 more")


def test_a_file_that_is_no_image_is_named(fake, tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    with refused("notes.txt") as caught:
        predictor().predict(tmp_path / "notes.txt")
    assert caught.value.where == str(tmp_path / "notes.txt")


def forms(path):
    """The same image as a path, bytes, a picture and arrays."""
    picture = Image.open(path).convert("RGB")
    pixels = np.asarray(picture)
    alpha = np.dstack([pixels, np.zeros(pixels.shape[:2], np.uint8)])
    return [path, str(path), path.read_bytes(), picture, pixels, alpha]


def test_one_image_in_every_form_gives_the_same_detections(fake, files):
    for image in forms(files[2]):
        detections = predictor().predict(image)
        assert detections.boxes.tolist() == [[16, 32, 48, 64]]
        assert detections.image[0, 0].tolist() == [20, 0, 0]
    np.testing.assert_array_equal(fake.shown[0][0], fake.shown[-1][0])


def test_16_bits_of_a_picture_are_those_of_its_file(fake, tmp_path):
    deep = np.full((8, 6), 0x9234, np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    for image in (tmp_path / "deep.png", Image.open(tmp_path / "deep.png"), Image.fromarray(deep)):
        assert (predictor().predict(image).image == 0x92).all()


def test_an_array_of_four_dimensions_is_many_images_and_two_are_grayscale(fake):
    assert len(predictor(batch_size=2).predict(np.zeros((3, 8, 8, 3), np.uint8))) == 3
    assert predictor().predict(np.full((8, 6), 7, np.uint8)).image[0, 0].tolist() == [7, 7, 7]


def test_a_small_file_of_a_huge_image_is_refused(fake):
    # A header of 20,000 x 20,000 pixels, which OpenCV would make room for.
    with refused("image", 19):
        predictor().predict(b"P6 20000 20000 255\n")


@pytest.mark.parametrize(
    "image, message",
    [
        (np.zeros((8, 8, 3), np.float32), r"type float32"),
        (np.zeros((8, 8, 2), np.uint8), r"shape \[8, 8, 2\]"),
        (np.zeros((0, 8, 3), np.uint8), r"shape \[0, 8, 3\]"),
        (b"nothing", "cannot be decoded"),
    ],
)
def test_other_inputs_than_images_are_refused(fake, image, message):
    with pytest.raises(UserError, match=message):
        predictor().predict(image)


def test_a_list_that_holds_something_else_is_refused(fake):
    with pytest.raises(UserError, match="a dict is no image"):
        predictor().predict([{}])


def test_files_are_turned_upright(fake, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("RGB", (30, 10)).save(tmp_path / "turned.jpg", exif=exif)
    assert predictor().predict(tmp_path / "turned.jpg").image.shape == (30, 10, 3)


def test_a_predictor_survives_pickling(fake, files):
    copy = pickle.loads(pickle.dumps(predictor(batch_size=2)))
    assert copy.batch_size == 2
    assert copy.predict(files[0]).boxes.tolist() == [[10, 50, 30, 100]]


def test_detections_are_shown_in_a_notebook(fake, files):
    detections = predictor().predict(files[0])
    page = detections._repr_html_()
    assert "&lt;owlet&gt;" in page and "<owlet>" not in page
    assert "data:image/jpeg;base64," in page
    assert Image.open(io.BytesIO(detections._repr_png_())).format == "PNG"
    assert "owlet" in repr(detections)


def test_detections_as_coco_and_as_json(fake, files):
    detections = predictor().predict(files[0])
    (row,) = detections.to_coco(7)
    assert (row["image_id"], row["category_id"], row["bbox"]) == (7, 44, [50, 10, 50, 20])
    (entry,) = json.loads(json.dumps(detections.to_dict()))["detections"]
    assert entry["box"] == {"ymin": 10, "xmin": 50, "ymax": 30, "xmax": 100}


def test_detections_for_trackers_and_zones(fake, files, monkeypatch):
    supervision = SimpleNamespace(Detections=lambda **columns: columns)
    monkeypatch.setitem(sys.modules, "supervision", supervision)
    columns = predictor().predict(files[0]).to_supervision()
    assert columns["xyxy"].tolist() == [[50, 10, 100, 30]]
    assert columns["class_id"].tolist() == [44]
    assert columns["confidence"] == pytest.approx([0.9])
    assert columns["data"]["class_name"].tolist() == ["<owlet>"]
    assert predictor().predict(files[0], min_score=1).to_supervision()["xyxy"].shape == (0, 4)
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(UserError, match="supervision is not installed") as caught:
        predictor().predict(files[0]).to_supervision()
    assert caught.value.fix == "pip install supervision"


def test_the_least_score_leaves_nothing_below_it(fake, files):
    assert len(predictor().predict(files[0], min_score=0.95)) == 0
    assert [detection.name for detection in predictor().predict(files[0], min_score=0.5)] == [
        "<owlet>"
    ]


BLANK = np.zeros((40, 60, 3), np.uint8)


@pytest.fixture(params=[np.nan, np.inf])
def spoilt(request, trained_once):
    """The small model with one number in the bias of its class head that is not finite."""
    model = load_model(trained_once)
    name = next(name for name in sorted(model.params) if "class" in name and "bias" in name)
    bias = np.array(model.params[name])
    bias[0] = request.param
    return replace(model, params={**model.params, name: bias})


def test_predicting_names_the_image(spoilt, tmp_path):
    predictor = Predictor(CheckpointBackend(spoilt))
    with refused("image", kind=NotFiniteError) as caught:
        predictor.predict(BLANK, **EVERY_DETECTION)
    assert "an earlier checkpoint" in caught.value.fix


def test_evaluating_names_the_image(spoilt):
    dataset = open_evaluation(spoilt.experiment)
    detect = score_program(spoilt.experiment).bind(spoilt.params, spoilt.stats)
    with refused("image 1000001", kind=NotFiniteError):
        score_dataset(detect, spoilt.experiment, dataset)
    with refused("image 1000001", kind=NotFiniteError):
        score_backend(CheckpointBackend(spoilt), spoilt.experiment, dataset)


def test_a_backend_is_scored_without_images_larger_than_its_canvas(fake, tmp_path):
    examples = [example(0), example(1, size=(41, 60)), example(2, encoded=b"no image")]
    model = replace(MODEL, resizer=schema.IdentityResizer(canvas=(40, 60)))
    experiment, strict = schema.Experiment(model=model), dataset(tmp_path, examples, model=model)
    trained = TrainedModel(experiment, strict.label_map, params={}, stats={}, source="test")
    backend = CheckpointBackend(trained)
    with refused("data.record: record 1 (byte 2167)", "41x60") as caught:
        score_backend(backend, experiment, strict)
    assert "record 1" in caught.value.where and "data.bad_records=drop" in caught.value.fix
    data = dataset(tmp_path, examples, model=model, data=schema.Data(bad_records="drop"))
    result = score_backend(backend, experiment, data)
    assert (result.records, result.left_out) == ((0,), 2)
    assert len(list(data.source.problems)) == 2


def test_a_sound_model_passes(trained_once):
    predictor = Predictor(CheckpointBackend(load_model(trained_once)))
    assert len(predictor.predict(BLANK, **EVERY_DETECTION)) > 0


def test_a_model_without_a_mark_is_checked_by_its_detections(monkeypatch):
    class Silent:
        def detect(self, images, true_sizes):
            boxes = jnp.zeros((3, 2, 4)).at[1, 0, 2].set(jnp.nan)
            scores = jnp.ones((3, 2)).at[2, 1].set(jnp.inf)
            counts = jnp.full(3, 2)
            return Detections(boxes, scores, jnp.zeros((3, 2), int), counts, jnp.zeros((3, 2), int))

    monkeypatch.setattr(detectors, "bind_detector", lambda *arrays: Silent())
    detect = detectors.detect_function(split_detector(nnx.Module())[0])
    detections = detect({}, {}, jnp.zeros((3, 4, 4, 3)), jnp.full((3, 2), 4))
    assert detections.finite.tolist() == [True, False, False]
