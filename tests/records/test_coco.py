"""COCO's records as the converters of tpu/models and MLPerf lay them out."""

import hashlib
import json

import numpy as np
import pytest

from stillbox.cli.main import main
from stillbox.errors import UserError
from stillbox.records.annotations import ImageRoot
from stillbox.records.formats.coco import read_coco
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog
from stillbox.records.wire import parse_features
from tests.helpers import refused
from tests.records.builders import image_bytes, read_records
from tests.small import SHARED, needs_shared

CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}]


def image(image_id=1, **values):
    return {"id": image_id, "file_name": f"{image_id}.jpg", "height": 40, "width": 60, **values}


def box(annotation_id=1, **values):
    stored = {"image_id": 1, "category_id": 18, "bbox": [6, 4, 30, 20], "area": 90.5, "iscrowd": 0}
    return {"id": annotation_id, **stored, **values}


IMAGES, BOXES = (image(),), (box(),)


@pytest.fixture
def read(tmp_path):
    def run(images=IMAGES, annotations=BOXES, categories=CATEGORIES, policy=None, **options):
        path = tmp_path / "instances.json"
        content = {"images": images, "annotations": annotations, "categories": categories}
        path.write_text(json.dumps(content))
        log = policy or ConversionLog()
        items, label_map = read_coco(path, tmp_path, log, **options)
        return items, label_map, log

    return run


def test_boxes_areas_and_crowds(read, tmp_path):
    (item,), _, problems = read(annotations=[box(), box(2, iscrowd=1, category_id=3)])
    # [x, y, width, height] = [6, 4, 30, 20]: ymin 4, xmin 6, ymax 24, xmax 36
    np.testing.assert_array_equal(item.pixel_boxes, [[4, 6, 24, 36]] * 2)
    assert item.class_ids.tolist() == [18, 3]
    assert item.is_crowd.tolist() == [False, True]
    assert item.area.tolist() == [90.5, 90.5]
    assert (item.image_id, item.filename, item.height, item.width) == ("1", "1.jpg", 40, 60)
    assert item.path == tmp_path / "1.jpg"
    assert item.where == "instances.json: image 1 (1.jpg)"
    assert not list(problems)


def test_category_ids_stay_with_their_gaps_unless_they_are_renumbered(read):
    _, label_map, _ = read()
    assert [(item.id, item.name) for item in label_map] == [(3, "car"), (18, "dog")]
    (item,), label_map, _ = read(renumber=True)
    assert [(item.id, item.name) for item in label_map] == [(1, "car"), (2, "dog")]
    assert item.class_ids.tolist() == [2]


def test_a_given_label_map_is_matched_by_name_or_display_name(read):
    given = LabelMap.from_text(
        "item { id: 1 name: 'dog' } item { id: 7 name: '/m/0k4j' display_name: 'car' }"
    )
    annotations = [box(), box(2, category_id=3)]
    (item,), label_map, _ = read(annotations=annotations, label_map=given)
    assert label_map is given
    assert item.class_ids.tolist() == [1, 7]


def test_an_unknown_category_is_marked(read):
    (item,), _, _ = read(label_map=LabelMap.from_names(["cat"]))
    assert item.class_ids.tolist() == [0]
    assert item.unknown == {0: "'dog'"}
    (item,), _, _ = read(annotations=[box(category_id=99), box(2, category_id=None)])
    assert item.class_ids.tolist() == [0, 0]
    assert item.unknown == {0: "category id 99", 1: "category id None"}


@pytest.mark.parametrize("spelt", ["18", 18.0])
def test_category_ids_may_be_spelt_as_text_or_with_a_point(read, spelt):
    boxes = [box(), box(2, category_id=spelt, bbox=[0, 0, 5, 5])]
    categories = [{"id": spelt, "name": "dog"}]
    (item,), _, problems = read(annotations=boxes, categories=categories)
    assert item.class_ids.tolist() == [18, 18]
    assert not list(problems)


def test_images_without_annotations_stay(read):
    items, _, problems = read(images=[image(2), image(1)])
    assert [(item.image_id, len(item.pixel_boxes)) for item in items] == [("2", 0), ("1", 1)]
    assert not list(problems)


def test_category_0_is_left_out_without_boxes_and_needs_a_decision_with_boxes(read):
    categories = [{"id": 0, "name": "things"}, {"id": 18, "name": "dog"}]
    _, label_map, problems = read(categories=categories)
    assert [item.id for item in label_map] == [18]
    assert {p.reason: p.count for p in problems} == {"category with an id below 1": 1}
    categories = [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]
    annotations = [box(category_id=0), box(2, category_id=1)]
    with refused("instances.json"):
        read(categories=categories, annotations=annotations)
    (item,), label_map, _ = read(categories=categories, annotations=annotations, renumber=True)
    assert item.class_ids.tolist() == [1, 2]
    assert label_map.id_of("dog") == 2


@pytest.mark.parametrize(
    ("bbox", "expected"),
    [
        ([6, 4, -3, 20], [4, 6, 24, 3]),
        ([6, 4, 30], [np.nan] * 4),
        (None, [np.nan] * 4),
        ([6, 4, None, 20], [4, 6, 24, np.nan]),
        ("6,4,30,20", [np.nan] * 4),
    ],
)
def test_odd_boxes_reach_the_policy(read, bbox, expected):
    (item,), _, _ = read(annotations=[box(bbox=bbox)])
    np.testing.assert_array_equal(item.pixel_boxes, [expected])


def test_a_missing_area_is_nan_and_a_missing_size_is_0(read):
    annotation = box()
    del annotation["area"]
    images = [{"id": 1, "file_name": "1.jpg", "height": None}]
    (item,), _, _ = read(images, [annotation])
    assert np.isnan(item.area).all()
    assert (item.height, item.width) == (0, 0)


BAD = {
    "image id occurs twice": {"images": [image(), image(file_name="b.jpg")]},
    "image entry without id or file name": {"images": [image(), {"id": 5}]},
    "annotation of an unknown image": {"annotations": [box(), box(2, image_id=9)]},
    "annotation id occurs twice": {"annotations": [box(), box()]},
    "annotation is no object": {"annotations": [box(), 7]},
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_entries_are_left_out_or_stop(read, reason):
    (item,), _, problems = read(**BAD[reason])
    assert len(item.pixel_boxes) == 1
    assert {p.reason: p.count for p in problems} == {reason: 1}
    with pytest.raises(UserError, match=rf"instances\.json: (images|annotations)\[1\]: {reason}"):
        read(policy=ConversionLog("fail", "fail"), **BAD[reason])


def test_two_boxes_with_one_id_or_none_are_both_kept(read):
    (item,), _, problems = read(annotations=[box(), box(bbox=[0, 0, 5, 5])])
    assert len(item.pixel_boxes) == 2
    assert next(iter(problems)).action == "box kept: it is another one"
    annotations = [box(), box(bbox=[0, 0, 5, 5])]  # without ids
    for annotation in annotations:
        del annotation["id"]
    (item,), _, problems = read(annotations=annotations)
    assert len(item.pixel_boxes) == 2
    assert not list(problems)


@pytest.mark.parametrize(
    ("categories", "words"),
    [
        ([], "names no category"),
        ([{"id": 1}], "a category has no usable id and name"),
        ([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}], "id 1 belongs to 'a' and to 'b'"),
        ([{"id": 1, "name": "a"}, {"id": 2, "name": "a"}], "'a' has two ids, 1 and 2"),
    ],
)
def test_categories_that_make_no_label_map_are_refused(read, categories, words):
    with pytest.raises(UserError, match=words):
        read(categories=categories, annotations=[])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "this is not JSON"),
        ("[]", "no list of images and of annotations and of categories"),
        ('{"images": [], "categories": []}', "no list of annotations"),
    ],
)
def test_another_file_is_refused(tmp_path, content, words):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UserError, match=words):
        read_coco(path, tmp_path, ConversionLog())


def test_absent_files_and_folders_are_named(tmp_path):
    for images, message in (
        (tmp_path, r"x\.json: cannot read it: No such file"),
        (tmp_path / "y", "no such folder of images"),
    ):
        with pytest.raises(UserError, match=message):
            read_coco(tmp_path / "x.json", images, ConversionLog())


@pytest.mark.parametrize("name", ["../../secret.jpg", "/etc/passwd", "a/../../b.jpg", "a\0.jpg"])
def test_a_file_name_that_leads_out_of_the_folder_is_refused(read, name):
    with refused("instances.json:1") as caught:
        read(images=[image(file_name=name)])
    assert caught.value.where.rpartition(":")[2] == "1"


@pytest.mark.parametrize("name", ["a/../b", "link/../b"])
def test_the_folder_of_the_images_may_be_written_with_two_points(tmp_path, name):
    for folder in ("a", "b", "deep/a", "deep/b"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep/a")
    root, real = ImageRoot(tmp_path / name), (tmp_path / name).resolve()
    assert root.path("1.jpg", tmp_path / "x.json") == real / "1.jpg"
    with refused("x.json"):
        root.path("../1.jpg", tmp_path / "x.json")


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
        special = {1: [], 4: [[6, 4, 0, 20]], 5: [[6, 4, 0, 20], [6, 4, 9, 9]]}
        for bbox in special.get(number, [[6, 4, 30, 20]]):
            boxes.append(record(len(boxes), number, 1, bbox, iscrowd=0, area=1))
    content = {"images": entries, "annotations": boxes, "categories": CLASSES}
    report = convert(content, tmp_path, "--shards", 2)
    assert (report["images_found"], report["images_written"]) == (7, 5)
    written = {
        name: [int(record["image/source_id"][0]) for record in stored]
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
    kept = [
        annotation for annotation in content["annotations"] if annotation["image_id"] not in bare
    ]
    annotated = {annotation["image_id"] for annotation in kept}
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
    for example in (example for examples in stored.values() for example in examples):
        path = TINY / "train2017" / example["image/filename"][0].decode()
        assert bytes(example["image/encoded"][0]) == path.read_bytes()
