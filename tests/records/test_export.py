"""Records written as YOLO, COCO and VOC, and read back."""

import json

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.records.export import FORMS, export_records
from stillbox.records.folder import convert_folder
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource
from stillbox.records.tf_example import serialize_example
from tests.records.builders import CAT_DOG, make_example, write_records
from tests.records.test_folder import examples, picture, voc_xml

# VOC's four decimals of 40 x 60 pixels round by less than this.
ROUNDING = 1e-5


def folder_of_two_sets(root):
    for part, names in (("train", "ab"), ("val", "cd")):
        for number, name in enumerate(names):
            picture(root / part / f"{name}.png", ord(name))
            boxes = [("cat", (4, 6, 24, 36)), ("dog", (1, 2, 3 + number, 59))]
            (root / part / f"{name}.xml").write_text(voc_xml(*boxes))
    return root


@pytest.mark.parametrize("form", FORMS)
def test_what_is_exported_reads_back_as_the_same_records(tmp_path, form):
    first = convert_folder(folder_of_two_sets(tmp_path / "photos"), tmp_path / "first")
    label_map = LabelMap.from_file(first.label_map)
    for split, records in (("train", first.train), ("val", first.validation)):
        done = export_records([records], label_map, tmp_path / form, form, split=split)
        assert (done.images, done.boxes, done.problems) == (2, 4, [])
    again = convert_folder(tmp_path / form, tmp_path / "again")
    assert (again.format, again.classes, again.split) == (form, first.classes, first.split)
    for part in ("train", "validation"):
        expected, found = examples(first, part), examples(again, part)
        assert list(found) == list(expected)
        for name, example in found.items():
            assert example.encoded == expected[name].encoded
            np.testing.assert_allclose(example.boxes, expected[name].boxes, atol=ROUNDING, rtol=0)
            np.testing.assert_array_equal(example.class_ids, expected[name].class_ids)


def test_flags_areas_and_ids_survive_where_the_format_has_them(tmp_path):
    flags = {"difficult": np.array([True]), "truncated": np.array([True])}
    crowd = {"is_crowd": np.array([True]), "area": np.array([5], np.float32)}
    path = write_records(tmp_path / "a.record", [make_example(image_id="12", **flags, **crowd)])
    export_records([str(path)], CAT_DOG, tmp_path / "voc", "voc")
    text = (tmp_path / "voc" / "Annotations" / "7.xml").read_text()
    assert "<difficult>1</difficult>" in text
    assert "<truncated>1</truncated>" in text
    export_records([str(path)], CAT_DOG, tmp_path / "coco", "coco", split="val")
    stored = json.loads((tmp_path / "coco/annotations/instances_val.json").read_text())
    assert (stored["images"][0]["id"], stored["images"][0]["file_name"]) == (12, "7.jpg")
    (box,) = stored["annotations"]
    assert (box["iscrowd"], box["area"], box["category_id"]) == (1, 5, 1)


@pytest.mark.parametrize("form", FORMS)
def test_names_in_records_lead_nowhere_else(tmp_path, form):
    names = ["../../up.jpg", "/etc/x.jpg", "a.jpg", "a.jpg", "..", ""]
    records = [make_example(filename=name, image_id=str(n)) for n, name in enumerate(names)]
    (tmp_path / "deep").mkdir()
    path = write_records(tmp_path / "deep" / "a.record", records)
    done = export_records([str(path)], CAT_DOG, tmp_path / "deep" / "out", form)
    assert done.images == 6
    images = [f for f in tmp_path.rglob("*.jpg") if f.is_file()]
    assert len(images) == 6
    assert all(image.is_relative_to(tmp_path / "deep" / "out") for image in images)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("yolo", "images"),
        ("yolo", "images/train"),
        ("yolo", "labels"),
        ("yolo", "labels/train"),
        ("coco", "train"),
        ("coco", "annotations"),
        ("voc", "JPEGImages"),
        ("voc", "Annotations"),
        ("voc", "ImageSets"),
    ],
)
def test_a_link_in_the_output_folder_is_not_followed(tmp_path, form, name):
    path = write_records(tmp_path / "a.record", [make_example(filename="7.jpg")])
    (tmp_path / "home").mkdir()
    link = tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "home")
    with pytest.raises(UserError, match="nothing is written there") as caught:
        export_records([str(path)], CAT_DOG, tmp_path / "out", form)
    assert caught.value.where == str(link)
    assert not any((tmp_path / "home").iterdir())


@pytest.mark.parametrize("form", FORMS)
def test_names_become_valid_in_files_and_formats(tmp_path, form):
    names = ["a\n\x1b[2J\u202e.jpg", "CASE.jpg", "case.jpg", "long" * 99 + ".jpg", "-x #%.jpg"]
    label_map = LabelMap.from_names(["cat\x1b\ufffe", "dog"])
    given = [make_example(filename=name, image_id=str(n)) for n, name in enumerate(names)]
    payloads = [serialize_example(one, label_map) for one in given]
    path = write_records(tmp_path / "a.record", payloads)
    export_records([str(path)], label_map, tmp_path / form, form)
    files = [file.name for file in (tmp_path / form).rglob("*.jpg")]
    assert len({name.casefold() for name in files}) == len(names)
    assert {"CASE.jpg", "a__[2J_.jpg", "-x #%.jpg"} <= set(files)
    assert convert_folder(tmp_path / form, tmp_path / "again").boxes == len(names)


def test_a_split_is_not_written_twice_and_stays_in_the_folder(tmp_path):
    path = str(write_records(tmp_path / "a.record", [make_example()]))
    export_records([path], CAT_DOG, tmp_path / "out", "yolo")
    with pytest.raises(UserError, match="there is such an image"):
        export_records([path], CAT_DOG, tmp_path / "out", "yolo")
    with pytest.raises(UserError, match="not the name of a split"):
        export_records([path], CAT_DOG, tmp_path / "out", "yolo", split="../../x")
    assert not list(tmp_path.rglob(".*partial*"))


def test_empty_images_stay_background(tmp_path):
    empty = make_example(boxes=[], class_ids=[])
    full = make_example(image_id="8", filename="8.jpg")
    path = write_records(tmp_path / "a.record", [empty, full])
    export_records([str(path)], CAT_DOG, tmp_path / "out", "yolo")
    assert (tmp_path / "out/labels/train/7.txt").read_text() == ""
    assert len(ExampleSource([str(path)])) == 2
