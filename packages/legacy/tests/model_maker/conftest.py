"""Small sets of annotated images in the three forms that the Model Makers read."""

import csv
import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import cv2
import pytest

from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import changed, read_config
from stillbox.experiment.updating import NO_CHANGES, merged
from stillbox_legacy.model_maker import mediapipe_model_maker, tflite_model_maker
from tests.small import SHARED

SMALL_LITE = (
    "model.backbone.width_coefficient=0.25",
    "model.backbone.depth_coefficient=0.3",
    "model.neck.num_repeats=1",
    "model.neck.depth=16",
    "model.head.depth=16",
    "model.head.layers_before=1",
    "model.resizer.min_dimension=160",
    "model.resizer.max_dimension=160",
)
SMALL_MOBILENET = (
    "model.backbone.depth_multiplier=0.25",
    "model.neck.depth=16",
    "model.head.depth=16",
    "model.head.layers_before=1",
    "model.resizer={kind: scale_jitter, height: 128, width: 128, min_scale: 0.5, max_scale: 2.0}",
)
CLASSES = {1: "small", 2: "large"}


def annotate(images, folder):
    """Writes images, `labels.json`, `Annotations/*.xml` and `table.csv`.

    Args:
        images: path, and boxes (class, xmin, ymin, xmax, ymax) in pixels.
    """
    (folder / "images").mkdir(parents=True)
    (folder / "Annotations").mkdir()
    content = {"images": [], "annotations": [], "categories": []}
    content["categories"] = [{"id": 0, "name": "background"}]
    content["categories"] += [{"id": i, "name": name} for i, name in CLASSES.items()]
    with (folder / "table.csv").open("w", newline="") as file:
        table = csv.writer(file)
        for index, (path, boxes) in enumerate(images):
            target = folder / "images" / path.name
            shutil.copy(path, target)
            height, width = cv2.imread(str(target)).shape[:2]
            content["images"].append({"id": index, "file_name": path.name})
            tree = ElementTree.Element("annotation")
            ElementTree.SubElement(tree, "filename").text = path.name
            part = "TRAINING" if index % 5 < 3 else ("VALIDATION", "TEST")[index % 5 - 3]
            for number, (name, xmin, ymin, xmax, ymax) in enumerate(boxes):
                class_id = next(i for i, class_name in CLASSES.items() if class_name == name)
                box = [xmin, ymin, xmax - xmin, ymax - ymin]
                annotation = {
                    "id": 100 * index + number,
                    "image_id": index,
                    "category_id": class_id,
                }
                content["annotations"].append(annotation | {"bbox": box})
                element = ElementTree.SubElement(tree, "object")
                ElementTree.SubElement(element, "name").text = name
                ElementTree.SubElement(element, "difficult").text = str(number % 2)
                inner = ElementTree.SubElement(element, "bndbox")
                sides = {"xmin": xmin, "ymin": ymin, "xmax": xmax, "ymax": ymax}
                for side, value in sides.items():
                    ElementTree.SubElement(inner, side).text = str(value)
                corner = xmin / width, ymin / height, xmax / width, ymax / height
                cells = [*corner[:2], "", "", *corner[2:], "", ""]
                table.writerow([part, str(target), name, *cells])
            ElementTree.ElementTree(tree).write(
                folder / "Annotations" / f"{path.stem}.xml", encoding="utf-8"
            )
    (folder / "labels.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="session")
def annotated(scenes, tmp_path_factory):
    """The ten scenes with one or two boxes each."""
    files = sorted((scenes / "images/train").iterdir())
    boxes = [("small", 10, 12, 40, 50), ("large", 5, 20, 60, 62)]
    images = [(path, boxes[: 1 + index % 2]) for index, path in enumerate(files)]
    return annotate(images, tmp_path_factory.mktemp("annotated") / "set")


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    """Twenty photographs of raccoons; those that fill half of the image have their own class."""
    folder = SHARED / "data/raccoon"
    if not folder.is_dir():
        pytest.skip("the folder ../shared is absent")
    images = []
    for file in sorted((folder / "annotations").glob("*.xml"))[:20]:
        tree = ElementTree.parse(file)
        size = int(tree.findtext("size/width")) * int(tree.findtext("size/height"))
        boxes = []
        for box in tree.iter("bndbox"):
            sides = [int(box.findtext(side)) for side in ("xmin", "ymin", "xmax", "ymax")]
            area = (sides[2] - sides[0]) * (sides[3] - sides[1])
            boxes.append(("large" if area > size / 2 else "small", *sides))
        images.append((folder / "images" / f"{file.stem}.jpg", boxes))
    return annotate(images, tmp_path_factory.mktemp("photographs") / "set")


@pytest.fixture
def small_networks(monkeypatch):
    """Makes the two Model Makers train small networks, whatever the notebook names."""

    def reader(overrides):
        def read(config, given=NO_CHANGES):
            if not isinstance(config, str):
                return read_config(config, given)
            return read_config(config, merged(given, changes_of(overrides)))

        return read

    lite = tflite_model_maker.model_spec
    monkeypatch.setattr(lite, "read_config", reader(SMALL_LITE))
    mobile = mediapipe_model_maker.object_detector
    monkeypatch.setattr(mobile, "read_config", reader(SMALL_MOBILENET))


@pytest.fixture
def short_runs(monkeypatch):
    """Every run ends after two steps, whatever the notebook says."""
    from stillbox_legacy.model_maker import detectors

    train_run = detectors.train_run

    def short(experiment, folder):
        changes = {"train.steps": 2, "train.checkpoint_every": 2, "train.evaluate_every": 0}
        schedule = {"train.optimizer.schedule": {"kind": "constant", "learning_rate": 0.001}}
        return train_run(changed(experiment, changes | schedule), folder)

    monkeypatch.setattr(detectors, "train_run", short)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory of its own."""
    monkeypatch.chdir(tmp_path)
    return Path(tmp_path)
