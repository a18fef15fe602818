"""From image files to boxes in their pixels."""

import numpy as np
import pytest
from PIL import Image

from stillbox.boxes.detections import Detections
from stillbox.errors import UserError
from stillbox.evaluation.predictor import predict_images
from stillbox.experiment import schema
from stillbox.records.class_slots import ClassSlots

RESIZER = schema.FixedShapeResizer(height=32, width=48)
SLOTS = ClassSlots((1, 2, 44))


class Fake:
    """Finds one box and one padding row in every image, and remembers what it was shown."""

    def __init__(self):
        self.shown = []

    def __call__(self, images, true_sizes):
        self.shown.append((images, true_sizes))
        count = len(images)
        return Detections(
            boxes=np.tile(np.float32([[0.25, 0.5, 0.75, 1.0], [0, 0, 0, 0]]), (count, 1, 1)),
            scores=np.tile(np.float32([0.9, 0.0]), (count, 1)),
            classes=np.tile(np.int32([2, 0]), (count, 1)),
            count=np.full(count, 1, np.int32),
        )


@pytest.fixture
def files(tmp_path):
    paths = []
    for number, (height, width) in enumerate([(40, 100), (20, 10), (64, 64)]):
        paths.append(tmp_path / f"{number}.png")
        Image.new("RGB", (width, height), (10 * number, 0, 0)).save(paths[-1])
    return paths


def test_boxes_are_in_pixels_of_each_image_and_classes_are_label_map_ids(files):
    predicted = list(predict_images(Fake(), files, RESIZER, SLOTS))
    assert [one.path for one in predicted] == files
    assert predicted[0].result.boxes.tolist() == [[10, 50, 30, 100]]
    assert predicted[1].result.boxes.tolist() == [[5, 5, 15, 10]]
    assert predicted[0].result.class_ids.tolist() == [44]
    assert predicted[0].result.scores == pytest.approx([0.9])
    assert predicted[0].image.shape == (40, 100, 3)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
def test_every_image_comes_once_whatever_the_batch(files, batch_size):
    fake = Fake()
    predicted = list(predict_images(fake, files, RESIZER, SLOTS, batch_size=batch_size))
    assert [one.result.image_id for one in predicted] == [str(path) for path in files]
    # One shape for all calls: the last batch is filled up.
    assert {images.shape for images, _ in fake.shown} == {(batch_size, 32, 48, 3)}
    assert {sizes.dtype for _, sizes in fake.shown} == {np.dtype(np.int32)}


def test_a_padding_resizer_tells_the_true_size(files):
    fake = Fake()
    resizer = schema.KeepAspectRatioResizer(min_dimension=20, max_dimension=40)
    list(predict_images(fake, files[:1], resizer, SLOTS))
    # 40 x 100: the long side would be 50, so it becomes 40 and the short one 16.
    assert fake.shown[0][1].tolist() == [[16, 40]]


def test_a_photograph_larger_than_the_canvas_is_named(files):
    resizer = schema.IdentityResizer(canvas=(33, 40))
    with pytest.raises(UserError, match="does not fit the canvas: 40x100") as caught:
        list(predict_images(Fake(), files[:1], resizer, SLOTS))
    assert caught.value.where == str(files[0])
    assert "model.resizer.canvas" in caught.value.fix


def test_missing_files_are_named_before_the_first_call(files, tmp_path):
    fake = Fake()
    missing = [tmp_path / f"no_{number}.png" for number in range(7)]
    with pytest.raises(UserError, match="there is no such image file") as caught:
        list(predict_images(fake, [*files, *missing], RESIZER, SLOTS))
    assert caught.value.where.endswith("no_4.png and 2 more")
    assert fake.shown == []


def test_a_file_that_is_no_image_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(UserError, match="cannot be decoded") as caught:
        list(predict_images(Fake(), [tmp_path / "notes.txt"], RESIZER, SLOTS))
    assert caught.value.where == str(tmp_path / "notes.txt")
