"""COCO's records as the converters of tpu/models and MLPerf lay them out."""

import hashlib
import json

import numpy as np
import pytest

from stillbox.cli.main import main
from stillbox.records.wire import parse_features
from tests.records.builders import image_bytes, read_records
from tests.shared import SHARED, needs_shared

TINY = SHARED / "data" / "tiny_coco"
CLASSES = [{"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}]
LAYOUT = ("--shard-names", "tfrecord", "--skip-images-without-boxes", "--json")


def record(number, image, category, bbox, **values):
    return {"id": number, "image_id": image, "category_id": category, "bbox": bbox, **values}


@pytest.fixture
def convert(tmp_path, capsys):
    """Writes the JSON, converts it with the page's options and returns the report."""

    def run(content, images, *words):
        path = tmp_path / "instances_train2017.json"
        path.write_text(json.dumps(content))
        command = ["data", "convert", "coco", "--annotations", path, "--images", images]
        options = ["--output", tmp_path / "records", "--name", "train", *LAYOUT, *words]
        assert main([str(word) for word in command + options]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def records(folder):
    """The features of every record by file, in order."""
    files = sorted((folder / "records").glob("*.tfrecord"))
    return {path.name: [parse_features(data) for data in read_records(path)] for path in files}


def test_every_key_has_the_value_that_the_original_gives_it(tmp_path, convert):
    content = image_bytes(40, 60)
    (tmp_path / "000000000139.jpg").write_bytes(content)
    entry = {"id": 139, "file_name": "000000000139.jpg", "height": 40, "width": 60}
    boxes = [
        # x, y, width, height in pixels of 60 x 40: ymin 4/40, xmin 6/60, ymax 24/40, xmax 36/60.
        record(1, 139, 90, [6, 4, 30, 20], iscrowd=0, area=412.5),
        record(2, 139, 1, [0, 0, 60, 40], iscrowd=1, area=2000.25),
    ]
    convert({"images": [entry], "annotations": boxes, "categories": CLASSES}, tmp_path)
    ((stored,),) = records(tmp_path).values()
    texts = {
        "image/filename": [b"000000000139.jpg"],
        "image/source_id": [b"139"],
        "image/key/sha256": [hashlib.sha256(content).hexdigest().encode()],
        "image/encoded": [content],
        "image/format": [b"jpeg"],
        "image/object/class/text": [b"toothbrush", b"person"],
    }
    numbers = {
        "image/height": np.array([40]),
        "image/width": np.array([60]),
        "image/object/bbox/ymin": np.float32([0.1, 0]),
        "image/object/bbox/xmin": np.float32([0.1, 0]),
        "image/object/bbox/ymax": np.float32([0.6, 1]),
        "image/object/bbox/xmax": np.float32([0.6, 1]),
        "image/object/class/label": np.array([90, 1]),
        "image/object/is_crowd": np.array([0, 1]),
        "image/object/area": np.float32([412.5, 2000.25]),
    }
    # image/caption/* and image/object/mask are left out: nothing here reads them.
    assert stored.keys() == texts.keys() | numbers.keys()
    assert {key: list(stored[key]) for key in texts} == texts
    for key, values in numbers.items():
        assert stored[key].dtype == values.dtype, key
        np.testing.assert_array_equal(stored[key], values, key)


def test_images_without_boxes_take_no_turn(tmp_path, convert):
    entries, boxes = [], []
    for number in range(7):
        (tmp_path / f"{number}.jpg").write_bytes(image_bytes())
        entries.append({"id": number, "file_name": f"{number}.jpg", "height": 40, "width": 60})
        # 1 has no box, 4 one without area. 5 has one of these as well as a sound one.
        for bbox in {1: [], 4: [[6, 4, 0, 20]], 5: [[6, 4, 0, 20], [6, 4, 9, 9]]}.get(
            number, [[6, 4, 30, 20]]
        ):
            boxes.append(record(len(boxes), number, 1, bbox, iscrowd=0, area=1))
    report = convert(
        {"images": entries, "annotations": boxes, "categories": CLASSES},
        tmp_path,
        *("--shards", 2),
    )
    assert (report["images_found"], report["images_written"]) == (7, 5)
    written = {
        name: [int(one["image/source_id"][0]) for one in stored]
        for name, stored in records(tmp_path).items()
    }
    # 0, 2, 3, 5, 6 in turn; were 1 and 4 counted, 2 would be in the first file.
    assert written == {
        "train-00000-of-00002.tfrecord": [0, 3, 6],
        "train-00001-of-00002.tfrecord": [2, 5],
    }


@needs_shared
def test_real_images_without_annotations_are_left_out(tmp_path, convert):
    content = json.loads((TINY / "annotations" / "instances_train2017.json").read_text())
    # Of the 118,287 images of train2017 1,021 have no annotation; of these 50 one has none, and
    # the images 0, 7, ... 49, eight of them, lose theirs.
    bare = {image["id"] for image in content["images"][::7]}
    kept = [one for one in content["annotations"] if one["image_id"] not in bare]
    annotated = {one["image_id"] for one in kept}
    report = convert(content | {"annotations": kept}, TINY / "train2017", "--shards", 16)
    assert report["images_found"] == 50
    assert report["images_written"] == len(annotated) == 41
    assert report["boxes_written"] == len(kept)
    stored = records(tmp_path)
    assert len(stored) == 16
    # In the order of the file, dealt out one by one.
    order = [image["id"] for image in content["images"] if image["id"] in annotated]
    for shard, (name, examples) in enumerate(stored.items()):
        assert name == f"train-{shard:05d}-of-00016.tfrecord"
        ids = [int(example["image/source_id"][0]) for example in examples]
        assert ids == order[shard::16]
    for example in (one for examples in stored.values() for one in examples):
        path = TINY / "train2017" / example["image/filename"][0].decode()
        assert bytes(example["image/encoded"][0]) == path.read_bytes()
