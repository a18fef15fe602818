import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.records.formats.voc import read_image_set, read_voc
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog
from tests.helpers import refused

BOX = "<bndbox><xmin>6</xmin><ymin>4</ymin><xmax>36</xmax><ymax>24</ymax></bndbox>"
DOG = f"<object><name>dog</name>{BOX}</object>"


def annotation(objects=DOG, filename="a.jpg", size="<width>60</width><height>40</height>"):
    return f"<annotation><filename>{filename}</filename><size>{size}</size>{objects}</annotation>"


@pytest.fixture
def root(tmp_path):
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def read(root):
    def run(files, policy=None, **options):
        for name, content in files.items():
            (root / "Annotations" / name).write_text(content)
        log = policy or ConversionLog()
        items, label_map = read_voc(root / "Annotations", root / "JPEGImages", log, **options)
        return items, label_map, log

    return run


def test_an_object_with_everything(read, root):
    flags = "<truncated>1</truncated><difficult>1</difficult>"
    (root / "JPEGImages" / "a.jpg").touch()
    other = DOG.replace("<xmin>6", "<xmin>5")
    (item,), label_map, problems = read(
        {"a.xml": annotation(f"<object><name>dog</name>{flags}{BOX}</object>{other}")}
    )
    # Coordinates as they are: no 1 is subtracted.
    np.testing.assert_array_equal(item.pixel_boxes, [[4, 6, 24, 36], [4, 5, 24, 36]])
    assert item.class_ids.tolist() == [1, 1]
    assert item.difficult.tolist() == item.truncated.tolist() == [True, False]
    assert (item.height, item.width) == (40, 60)
    assert (item.image_id, item.filename, item.where) == ("a.jpg", "a.jpg", "Annotations/a.xml")
    assert item.path == root / "JPEGImages" / "a.jpg"
    assert np.isnan(item.area).all()
    assert [entry.name for entry in label_map] == ["dog"]
    assert not list(problems)


def test_the_boxes_of_parts_are_not_the_objects(read):
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    person = annotation(f"<object><name>person</name>{part}{BOX}</object>")
    (item,), label_map, _ = read({"a.xml": person})
    np.testing.assert_array_equal(item.pixel_boxes, [[4, 6, 24, 36]])
    assert [entry.name for entry in label_map] == ["person"]


def test_classes_come_from_all_files_for_every_set(read):
    cat = annotation(DOG.replace("dog", " cat "))
    items, label_map, _ = read({"a.xml": annotation(), "b.xml": cat}, stems=["a"])
    assert [(entry.id, entry.name) for entry in label_map] == [(1, "cat"), (2, "dog")]
    assert [item.class_ids.tolist() for item in items] == [[2]]


def test_ids_are_those_of_a_given_label_map(read):
    given = LabelMap.from_text("item { id: 12 name: 'x' display_name: 'dog' }")
    (item,), label_map, _ = read({"a.xml": annotation()}, label_map=given)
    assert label_map is given
    assert item.class_ids.tolist() == [12]
    (item,), _, _ = read({"a.xml": annotation()}, label_map=LabelMap.from_names(["cat"]))
    assert item.unknown == {0: "'dog'"}


def test_files_come_sorted_or_in_the_order_of_the_set(read):
    files = {f"{name}.xml": annotation(filename=f"{name}.jpg") for name in "cab"}
    assert [item.where[-5] for item in read(files)[0]] == ["a", "b", "c"]
    assert [item.where[-5] for item in read(files, stems=["b", "a"])[0]] == ["b", "a"]


# The file's own name finds the image; the name inside is often a leftover.
@pytest.mark.parametrize(
    ("images", "inside", "chosen"),
    [
        (["a.jpg", "b.jpg"], "b.jpg", "a.jpg"),
        (["a.PNG"], "a.jpg", "a.PNG"),
        (["a.png", "a.jpg"], "a.jpg", "a.jpg"),
        (["b.jpeg"], "b.jpg", "b.jpeg"),
        ([], "b.jpg", "b.jpg"),
        (["a.txt"], "a.jpg", "a.jpg"),
    ],
)
def test_the_image_of_an_annotation(read, root, images, inside, chosen):
    for name in images:
        (root / "JPEGImages" / name).touch()
    (item,), _, _ = read({"a.xml": annotation(filename=inside)})
    assert item.path.name == chosen


@pytest.mark.parametrize(
    ("text", "xmin"), [("", np.nan), ("abc", np.nan), ("nan", np.nan), ("6.25", 6.25)]
)
def test_coordinates_are_kept_and_others_reach_the_policy(read, text, xmin):
    (item,), _, _ = read({"a.xml": annotation(DOG.replace("<xmin>6", f"<xmin>{text}"))})
    np.testing.assert_array_equal(item.pixel_boxes, [[4, xmin, 24, 36]])


@pytest.mark.parametrize("size", ["", "<width/><height/>", "<width>a</width><height>b</height>"])
def test_an_object_without_a_box_a_name_or_the_size_of_its_image(read, size):
    objects = f"<object><name>dog</name></object><object>{BOX}</object>"
    (item,), _, _ = read({"a.xml": annotation(objects, size=size)})
    assert np.isnan(item.pixel_boxes[0]).all()
    assert item.unknown == {1: "''"}
    assert (item.height, item.width) == (0, 0)


def test_broken_xml_is_left_out_or_stops(read):
    files = {"a.xml": annotation(), "b.xml": "<annotation>"}
    items, _, problems = read(files)
    assert len(items) == 1
    assert {p.reason: p.count for p in problems} == {"annotation file is no XML": 1}
    with refused("Annotations/b.xml", "XML"):
        read(files, ConversionLog("fail"))
    assert len(read(files, ConversionLog("fail"), stems=["a"])[0]) == 1  # not of this set


def test_a_missing_annotation_file_is_left_out_or_stops(read):
    items, _, problems = read({"a.xml": annotation()}, stems=["a", "b"])
    assert len(items) == 1
    assert {p.reason: p.count for p in problems} == {"annotation file is missing": 1}
    with refused("Annotations/b.xml"):
        read({}, ConversionLog("fail"), stems=["b"])


def test_without_any_object_a_label_map_is_required(read):
    with refused("Annotations", "label_map"):
        read({"a.xml": annotation("")})
    items, _, _ = read({"a.xml": annotation("")}, label_map=LabelMap.from_names(["cat"]))
    assert len(items[0].pixel_boxes) == 0


@pytest.mark.parametrize(
    ("annotations", "images", "message"),
    [
        ("Annotations", "JPEGImages", "the folder holds no XML file"),
        ("x", "JPEGImages", r"no such folder\n  fix: see annotations"),
        ("Annotations", "x", r"no such folder\n  fix: see images"),
    ],
)
def test_folders_that_hold_nothing_are_refused(root, annotations, images, message):
    with pytest.raises(UserError, match=message):
        read_voc(root / annotations, root / images, ConversionLog())


def test_image_sets(root):
    main = root / "ImageSets" / "Main"
    (main / "train.txt").write_text("a\n\nb\na\n")
    (main / "cat_train.txt").write_text("a  1\nb -1\n")
    (main / "empty.txt").write_text("\n")
    assert read_image_set(root, "train") == ["a", "b"]
    assert read_image_set(root, "cat_train") == ["a", "b"]
    with refused("ImageSets/Main/trian.txt", "train"):
        read_image_set(root, "trian")
    with refused("ImageSets/Main/empty.txt"):
        read_image_set(root, "empty")
    with refused("Annotations/ImageSets/Main/train.txt", "set="):
        read_image_set(root / "Annotations", "train")


def test_xml_of_another_format_is_refused(read):
    with refused("Annotations/b.xml", "VOC", "XML"):
        read({"a.xml": annotation(), "b.xml": "<annotations><image name='a.png'/></annotations>"})


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/passwd", "C:\\secret.jpg"])
def test_a_filename_that_leads_out_of_the_folder_is_refused(read, name):
    with refused("Annotations/a.xml:2") as caught:
        bad = f"<annotation>\n<filename>{name}</filename></annotation>"
        read({"a.xml": bad, "b.xml": annotation()})
    assert caught.value.where.endswith("a.xml:2")


def test_folders_may_be_relative(read, root, monkeypatch):
    monkeypatch.chdir(root)
    (root / "Annotations" / "a.xml").write_text(annotation())
    items, _ = read_voc("Annotations", "JPEGImages", ConversionLog())
    # The image is missing, which is told when it is converted.
    assert [item.path for item in items] == [(root / "JPEGImages" / "a.jpg").resolve()]
