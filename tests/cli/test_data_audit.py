"""`stillbox data audit` and `stillbox.audit`, on scenes with a model that has learnt little."""

import csv
import json
import shutil
import xml.etree.ElementTree as ElementTree
from collections import Counter

import numpy as np
import pytest

import stillbox as package
from stillbox.auditing import corrected
from stillbox.evaluation.label_audit import FAULTS, Box, Suspicion
from stillbox.records.example import Example

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")


@pytest.fixture
def photos(scenes, tmp_path):
    """A folder of records with their label map, 10 to train on and 6 to score."""
    others = shutil.ignore_patterns("*.json", "*.jpg")
    return shutil.copytree(scenes, tmp_path / "photos", ignore=others)


def test_suspicions_are_listed_drawn_and_written_as_tasks(stillbox, trained_once, photos, here):
    words = ("data", "audit", photos, "--model", trained_once, "--number", "12")
    out, err = stillbox(*words, "--labels", "cvat").ended()
    assert "detecting in 16 images" in err
    with (here / "audit/audit.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    sureness = [float(row["sureness"]) for row in rows]
    assert out.splitlines()[0].startswith(f"{len(rows)} suspicions in 16 images: ")
    counts = Counter(row["fault"] for row in rows)
    assert max(counts.values()) == 12
    assert set(counts) <= set(FAULTS)
    assert sureness == sorted(sureness, reverse=True)
    page = (here / "audit/audit.html").read_text()
    assert page.count("<figcaption>") == len(rows)
    images = {row["image"] for row in rows}
    tasks = ElementTree.parse(here / "audit/labels/annotations_train.xml").findall("image")
    assert len(tasks) == len(images)
    for task in tasks:
        assert (here / "audit/labels/images/train" / task.get("name")).is_file()


def test_python_gets_the_suspicions_and_label_studio_its_predictions(
    trained_once, photos, tmp_path
):
    audited = package.audit(
        photos, trained_once, number=5, labels="label_studio", output=tmp_path / "out"
    )
    assert 5 <= len(audited.suspicions) <= 20
    tasks = json.loads((tmp_path / "out/labels/tasks_train.json").read_text())
    assert len(tasks) == len({each.image_id for each in audited.suspicions})
    assert all("predictions" in task for task in tasks)


def test_a_model_of_other_classes_is_refused(refused, trained_once, photos, here):
    label_map = photos / "label_map.pbtxt"
    label_map.write_text(label_map.read_text().replace("disc", "plate"))
    assert "'plate'" in refused("data", "audit", photos, "--model", trained_once)


def test_labels_of_an_earlier_audit_may_have_been_edited(refused, trained_once, photos, here):
    (here / "audit/labels").mkdir(parents=True)
    (here / "audit/labels/mine.xml").write_text("")
    words = ("data", "audit", photos, "--model", trained_once, "--labels", "cvat")
    assert "may have been edited" in refused(*words)


def suspicion(fault, index, suggestion):
    return Suspicion(
        image_id="a",
        fault=fault,
        sureness=0.7,
        label=None if index is None else Box((0, 0, 1, 1), 1),
        label_index=index,
        suggestion=suggestion and Box(suggestion, 2),
    )


def test_suggestions_take_the_place_of_labels():
    boxes = np.array([[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1], [0, 0.5, 0.5, 1]], np.float32)
    example = Example(image_id="a", encoded=b"x", boxes=boxes, class_ids=np.array([1, 1, 1]))
    changed, scores = corrected(
        example,
        [
            suspicion("wrong class", 0, (0, 0, 50, 100)),
            suspicion("spurious", 2, None),
            suspicion("missing", None, (50, 0, 100, 100)),
        ],
        (100, 200),
    )
    assert changed.boxes.tolist() == [[0.5, 0.5, 1, 1], [0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5]]
    assert changed.class_ids.tolist() == [1, 2, 2]
    assert scores.tolist() == [1, 0.7, 0.7]
    assert changed.encoded == b""
