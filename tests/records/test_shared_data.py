"""Every data set of the shared folder goes through, and what comes out is what went in."""

import csv
import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from stillbox.records.conversion import ConversionOptions, convert
from stillbox.records.export import export_records
from stillbox.records.folder import convert_folder
from stillbox.records.folder_content import FolderOptions
from stillbox.records.formats.coco import read_coco
from stillbox.records.formats.voc import read_image_set, read_voc
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog
from stillbox.records.record_file import RecordFile
from stillbox.records.source import ExampleSource
from stillbox.records.wire import parse_features, serialize_features
from tests.records.builders import read_records
from tests.small import SHARED, needs_shared

pytestmark = needs_shared
DATA = SHARED / "data"
MAPS = SHARED / "configs" / "label_maps"


def converted(items, label_map, tmp_path, log, name="set"):
    report = convert(items, label_map, tmp_path, name, options=ConversionOptions(shards=2), log=log)
    return report, ExampleSource([f"{tmp_path}/{name}.record@2"], label_map)


# classes, greatest id; read off the files
LABEL_MAPS = {
    "crack_label_map": (8, 8),
    "crosswalk_label_map": (1, 1),
    "face_label_map": (1, 1),
    "kitti_label_map": (2, 2),
    "label_map": (5, 5),
    "mscoco_complete_label_map": (90, 90),
    "mscoco_label_map": (80, 90),
    "object-detection": (1, 1),
    "oid_bbox_trainable_label_map": (545, 545),
    "oid_v4_label_map": (601, 601),
    "pascal_label_map": (20, 20),
    "pet_label_map": (37, 37),
    "snapshot_serengeti_label_map": (48, 48),
    "sushi_label_map": (3, 3),
}


def test_there_are_no_other_label_maps():
    assert {path.stem for path in MAPS.iterdir()} == set(LABEL_MAPS)


@pytest.mark.parametrize("name", LABEL_MAPS)
def test_real_label_maps(name):
    label_map = LabelMap.from_file(MAPS / f"{name}.pbtxt")
    assert (len(label_map), label_map.max_id) == LABEL_MAPS[name]
    assert LabelMap.from_text(label_map.to_text()) == label_map


def test_the_classes_of_coco_by_display_name():
    label_map = LabelMap.from_file(MAPS / "mscoco_label_map.pbtxt")
    assert label_map.id_of("toothbrush", use_display_name=True) == 90
    assert label_map.id_of("toothbrush") is None
    assert 12 not in label_map


def test_the_built_in_map_of_coco_has_the_names_and_ids_that_others_use():
    assert LabelMap.from_file("coco").names == (
        LabelMap.from_file(MAPS / "mscoco_label_map.pbtxt").names
    )
    path = DATA / "tiny_coco" / "annotations" / "instances_train2017.json"
    _, label_map = read_coco(path, DATA / "tiny_coco" / "train2017", ConversionLog())
    assert label_map == LabelMap.from_file("coco")


RECORDS = {
    "tfrecords/pets_examples.record": (10, 10, MAPS / "pet_label_map.pbtxt"),
    "tfrecords/raccoon_test.record": (40, 44, DATA / "raccoon" / "label_map.pbtxt"),
    "raccoon/data/test.record": (40, 44, DATA / "raccoon" / "label_map.pbtxt"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_other_peoples_tools(name):
    records, boxes, label_map = RECORDS[name]
    before = sorted((DATA / name).parent.iterdir())
    source = ExampleSource([str(DATA / name)], LabelMap.from_file(label_map))
    examples = [source.example(index) for index in range(len(source))]
    assert len(examples) == records
    assert sum(len(example.boxes) for example in examples) == boxes
    assert not list(source.problems)
    assert sorted((DATA / name).parent.iterdir()) == before


@pytest.mark.parametrize("name", RECORDS)
def test_features_are_written_back_value_for_value(name):
    for payload in read_records(DATA / name):
        features = parse_features(payload)
        again = parse_features(serialize_features(features))
        assert list(again) == sorted(features)
        for key, values in features.items():
            np.testing.assert_array_equal(again[key], values)


def test_raccoon_records_hold_the_boxes_of_the_csv():
    file = DATA / "raccoon" / "data"
    expected = {}
    for row in csv.DictReader((file / "test_labels.csv").read_text().splitlines()):
        size = (float(row["height"]), float(row["width"])) * 2
        sides = [float(row[side]) for side in ("ymin", "xmin", "ymax", "xmax")]
        box = np.float32(np.array(sides) / np.array(size))
        expected.setdefault(row["filename"], []).append(box)
    source = ExampleSource([str(file / "test.record")])
    for example in map(source.example, range(len(source))):
        np.testing.assert_array_equal(example.boxes, expected[example.filename])


def test_the_index_agrees_with_reading_in_order():
    path = DATA / "tfrecords" / "raccoon_test.record"
    file = RecordFile(path)
    assert [file.read(n) for n in range(len(file))] == read_records(path)


# images, boxes found, boxes written; the degenerate box of each set
BCCD = {
    "train": (205, 2805, 2804, "BloodImage_00343.xml, box 3"),
    "val": (87, 1138, 1137, "BloodImage_00338.xml, box 12"),
    "test": (72, 945, 945, None),
}


@pytest.mark.parametrize("name", BCCD)
def test_bccd(tmp_path, name):
    images, boxes, written, bad = BCCD[name]
    root = DATA / "bccd"
    log = ConversionLog()
    stems = read_image_set(root, name)
    items, label_map = read_voc(root / "Annotations", root / "JPEGImages", log, stems=stems)
    assert [item.name for item in label_map] == ["Platelets", "RBC", "WBC"]
    report, source = converted(items, label_map, tmp_path, log)
    assert (report.images_written, report.boxes_found, report.boxes_written) == (
        images,
        boxes,
        written,
    )
    problems = list(log)
    assert [p.reason for p in problems] == (["box without area"] if bad else [])
    if bad:
        assert bad in problems[0].examples[0]
    example = source.example(0)
    tree = ElementTree.parse(root / "Annotations" / f"{stems[0]}.xml")
    sides = [[float(o.findtext(f"bndbox/{s}")) for s in ("ymin", "xmin", "ymax", "xmax")]
             for o in tree.iter("object")]  # fmt: skip
    np.testing.assert_array_equal(example.boxes, np.float32(np.array(sides) / [480, 640, 480, 640]))
    assert example.encoded == (root / "JPEGImages" / f"{stems[0]}.jpg").read_bytes()


def test_raccoon_with_its_three_grayscale_images(tmp_path):
    root = DATA / "raccoon"
    log = ConversionLog()
    items, label_map = read_voc(root / "annotations", root / "images", log)
    assert label_map == LabelMap.from_file(root / "label_map.pbtxt")
    report, _ = converted(items, label_map, tmp_path, log)
    assert (report.images_written, report.boxes_written) == (200, 217)
    assert {p.reason: p.count for p in log} == {"grayscale image": 3}


# images, boxes, crowds, images without a box
TINY_COCO = {"train": (50, 470, 5, 1), "val": (50, 382, 5, 2)}


@pytest.mark.parametrize("name", TINY_COCO)
def test_tiny_coco(tmp_path, name):
    images, boxes, crowds, empty = TINY_COCO[name]
    root = DATA / "tiny_coco"
    annotations = root / "annotations" / f"instances_{name}2017.json"
    log = ConversionLog("fail", "fail")
    items, label_map = read_coco(annotations, root / f"{name}2017", log)
    assert (len(label_map), label_map.max_id) == (80, 90)
    report, source = converted(items, label_map, tmp_path, log)
    assert (report.images_written, report.boxes_written) == (images, boxes)
    assert report.images_without_boxes == empty
    assert not list(log)
    stored = json.loads(annotations.read_text())
    by_image = {str(image["id"]): image for image in stored["images"]}
    found_crowds = 0
    for example in map(source.example, range(len(source))):
        image = by_image[example.image_id]
        in_image = [a for a in stored["annotations"] if a["image_id"] == image["id"]]
        found_crowds += int(example.is_crowd.sum())
        assert example.class_ids.tolist() == [a["category_id"] for a in in_image]
        assert example.is_crowd.tolist() == [bool(a["iscrowd"]) for a in in_image]
        np.testing.assert_array_equal(example.area, np.float32([a["area"] for a in in_image]))
        height, width = image["height"], image["width"]
        sides = [(y / height, x / width, (y + h) / height, (x + w) / width)
                 for x, y, w, h in (a["bbox"] for a in in_image)]  # fmt: skip
        # Equal to the quotient but for the clip of what rounding pushed over the edge.
        expected = np.float32(np.reshape(sides, (-1, 4))).clip(0, 1)
        np.testing.assert_array_equal(example.boxes, expected)
    assert found_crowds == crowds


# format, images, boxes
FOLDERS = {
    "bccd": ("voc", 364, 4886),
    "raccoon": ("voc", 200, 217),
    "tiny_coco": ("coco", 100, 852),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["yolo", "voc", "coco"])
@pytest.mark.parametrize("name", FOLDERS)
def test_the_same_records_come_out_of_every_form(tmp_path, name, form):
    form_of_folder, images, boxes = FOLDERS[name]
    # The folder of raccoon has its boxes as CSV too.
    first = convert_folder(DATA / name, tmp_path / "first", FolderOptions(format=form_of_folder))
    assert first.train_images + first.validation_images + first.test_images == images
    label_map = LabelMap.from_file(first.label_map)
    sets = {"train": first.train, "val": first.validation, "test": first.test}
    for split, records in sets.items():
        if records:
            export_records([records], label_map, tmp_path / form, form, split=split)
    again = convert_folder(tmp_path / form, tmp_path / "again", FolderOptions(label_map=label_map))
    assert (again.format, again.boxes) == (form, boxes)
    for records, others in zip(
        sets.values(), (again.train, again.validation, again.test), strict=True
    ):
        expected, exported = (by_name(r, label_map) if r else {} for r in (records, others))
        assert sorted(exported) == sorted(expected)
        for key, (example, payload) in exported.items():
            # Boxes are equal bit for bit; flags and ids survive where the format has them.
            np.testing.assert_array_equal(example.boxes, expected[key][0].boxes)
            np.testing.assert_array_equal(example.class_ids, expected[key][0].class_ids)
            assert example.encoded == expected[key][0].encoded
            assert form != form_of_folder or payload == expected[key][1]


def by_name(records, label_map):
    source = ExampleSource([records], label_map)
    payloads = [file.read(n) for file in source.files for n in range(len(file))]
    return {
        source.example(n).filename: (source.example(n), payloads[n]) for n in range(len(source))
    }
