"""The helpers of tutorials and the converters, on folders that they expect."""

import io
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from packages.legacy.tests.tutorials.conftest import label_image
from stillbox.cli.main import main
from stillbox.records.label_map import LabelMap
from stillbox.records.record_file import RecordFile
from stillbox.records.source import ExampleSource
from stillbox.records.wire import parse_features
from stillbox_legacy.tutorials.folder import folder_files
from stillbox_legacy.tutorials.installation import ModelBuilderTF2Test, check_installation
from tests.small import SHARED, needs_shared

LABELS = "item {\n  id: 1\n  name: 'dog'\n}\nitem {\n  id: 2\n  name: 'cat'\n}\n"


def records(path):
    file = RecordFile(path)
    return [parse_features(file.read(number)) for number in range(len(file))]


def test_a_folder_that_holds_something_is_not_written_to(research, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["tutorial", str(tmp_path)]) == 2
    assert "the folder is not empty\n  fix: give another one" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert main(["tutorial", str(tmp_path), "--overwrite"]) == 0
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "object_detection" / "model_main_tf2.py").is_file()


@pytest.mark.parametrize(
    "place", ["object_detection/model_main_tf2.py", "object_detection/data/pet_label_map.pbtxt"]
)
def test_a_program_of_the_original_is_not_replaced(tmp_path, capsys, place):
    mine = tmp_path / "research" / place
    mine.parent.mkdir(parents=True)
    mine.write_text("# Copyright 2020 The TensorFlow Authors.\n")
    words = ["tutorial", str(tmp_path / "research"), "--overwrite"]
    assert main(words) == 2
    assert f"{place}: this file would be replaced" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
    mine.unlink()
    assert main(words) == main(words) == 0  # its own files are replaced


def test_every_script_has_a_help(research, python):
    scripts = [place for place, text in folder_files() if "command()" in text]
    assert len(scripts) > 20
    for place in scripts:
        assert "usage: stillbox" in python(f"python {research / place} --help")


@pytest.mark.parametrize("name", ["pet", "pascal", "mscoco"])
@needs_shared
def test_label_maps_are_those_of_the_original(research, name):
    ours = LabelMap.from_file(research / "object_detection" / "data" / f"{name}_label_map.pbtxt")
    original = LabelMap.from_file(SHARED / "configs" / "label_maps" / f"{name}_label_map.pbtxt")
    assert ours.names == original.names


def test_the_check_of_the_installation_says_ok_as_the_original_does(research):
    script = research / "object_detection" / "builders" / "model_builder_tf2_test.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[       OK ] ModelBuilderTF2Test.test_create_ssd_models_from_config" in done.stderr
    assert "Ran 7 tests in " in done.stderr
    assert done.stderr.rstrip().endswith("OK")


def test_a_model_that_cannot_be_built_is_named_with_the_reason(monkeypatch):
    def build(self, family):
        with self.subTest(family):
            raise ValueError(f"{family} has no such layer")

    monkeypatch.setattr(ModelBuilderTF2Test, "_build", build)
    stream = io.StringIO()
    assert not check_installation(stream)
    assert (
        "[   FAILED ] ModelBuilderTF2Test.test_create_ssd_models_from_config" in stream.getvalue()
    )
    assert "ValueError: ssd has no such layer" in stream.getvalue()


def test_images_are_moved_once_and_a_stopped_run_ends_in_the_same_folders(
    research, python, labelled
):
    said = python(f"python {research}/train_val_test_split.py")
    assert (
        "Files moving to train: 8\nFiles moving to validation: 1\nFiles moving to test: 1" in said
    )
    parts = ("train", "validation", "test")
    after = {part: sorted(p.name for p in (labelled / "images" / part).iterdir()) for part in parts}
    assert sum(map(len, after.values())) == 20
    # One image is back, as if the run had been stopped before it.
    name = after["train"][0]
    for suffix in (".jpg", ".xml"):
        file = (labelled / "images" / "train" / name).with_suffix(suffix)
        file.rename(labelled / "images" / "all" / file.name)
    python(f"python {research}/train_val_test_split.py")
    again = {part: sorted(p.name for p in (labelled / "images" / part).iterdir()) for part in parts}
    assert again == after


def test_a_partition_is_copied_and_no_other_is_mixed_into_it(research, python, labelled):
    line = f"python {research}/partition_dataset.py -x -i images/all -r 0.25"
    python(line)
    python(line)
    counts = {p: len(list((labelled / "images/all" / p).glob("*.xml"))) for p in ("train", "test")}
    assert counts == {"train": 7, "test": 3}
    assert len(list((labelled / "images/all").glob("*.jpg"))) == 10
    said = python(line.replace("0.25", "0.5"), code=2)
    assert "the folder has images of another division" in said


def test_an_image_without_labels_is_named_before_anything_is_copied(research, python, labelled):
    for number in (1, 2):
        (labelled / f"images/all/img_{number}.xml").unlink()
    said = python(f"python {research}/partition_dataset.py -x -i images/all", code=2)
    assert "2 images have no XML file of their name, such as img_1.jpg" in said
    assert not (labelled / "images/all/train").exists()


def test_tables_and_records_of_the_three_forms(research, python, labelled):
    python(f"python {research}/train_val_test_split.py")
    python(f"python {research}/create_csv.py")
    table = (labelled / "images/train_labels.csv").read_text().splitlines()
    assert table[0] == "filename,width,height,class,xmin,ymin,xmax,ymax"
    assert all(
        line.endswith((",96,64,cat,8,8,40,40", ",96,64,dog,50,20,90,60")) for line in table[1:]
    )
    (labelled / "labelmap.txt").write_text("dog\ncat\n")
    (labelled / "labels.pbtxt").write_text(LABELS)
    python(
        f"python {research}/create_tfrecord.py --csv_input=images/train_labels.csv "
        "--labelmap=labelmap.txt --image_dir=images/train --output_path=train.tfrecord"
    )
    assert (labelled / "labelmap.pbtxt").read_text() == LABELS
    said = python(
        f"python {research}/generate_tfrecord.py --csv_input=images/train_labels.csv "
        "--image_dir=images/train --output_path=train.record"
    )
    assert "classes by name, without ids: cat, dog" in said
    python(
        f"python {research}/generate_tfrecord.py -x images/train -l labels.pbtxt "
        "-o xml.record -c copy.csv"
    )
    assert (labelled / "copy.csv").read_text().splitlines() == table
    first, second, third = (
        records(f"{name}") for name in ("train.tfrecord", "train.record", "xml.record")
    )
    # The same bytes, in the same order.
    assert Path("train.tfrecord").read_bytes() == Path("xml.record").read_bytes()
    assert len(third) == 8
    assert [list(record["image/object/class/text"]) for record in second] == [
        list(record["image/object/class/text"]) for record in first
    ]
    assert not any("image/object/class/label" in record for record in second)
    fuller = next(record for record in first if len(record["image/object/class/text"]) == 2)
    assert list(fuller["image/object/class/text"]) == [b"cat", b"dog"]
    assert list(fuller["image/object/class/label"]) == [2, 1]
    np.testing.assert_allclose(fuller["image/object/bbox/xmin"], [8 / 96, 50 / 96], rtol=1e-6)


@pytest.mark.parametrize("order", [("cat", "dog"), ("dog", "cat")])
def test_records_without_a_label_map_agree_with_every_order_of_it(
    research, python, labelled, order
):
    python(f"python {research}/xml_to_csv.py -i images/all -o boxes.csv")
    python(
        f"python {research}/generate_tfrecord.py --csv_input=boxes.csv --image_dir=images/all "
        "--output_path=train.record"
    )
    source = ExampleSource(["train.record"], LabelMap.from_names(order))
    class_ids = {i for n in range(len(source)) for i in source.example(n).class_ids.tolist()}
    assert class_ids == {1, 2}
    assert not list(source.problems)


def test_a_table_without_a_folder_reads_images(research, python, labelled):
    """sentdex's course and D. Tran's `raccoon_dataset`: the photographs lie in `images`."""
    python(f"python {research}/xml_to_csv.py -i images/all -o train_labels.csv")
    for image in (labelled / "images" / "all").glob("*.jpg"):
        image.rename(labelled / "images" / image.name)
    python(
        f"python {research}/generate_tfrecord.py --csv_input=train_labels.csv "
        "--output_path=train.record"
    )
    assert len(records("train.record")) == 10


def test_a_class_that_the_label_map_lacks_stops_before_a_file_is_written(
    research, python, labelled
):
    (labelled / "labels.pbtxt").write_text("item { id: 1 name: 'cat' }")
    said = python(
        f"python {research}/generate_tfrecord.py -x images/all -l labels.pbtxt -o x.record", code=2
    )
    assert "all/img_1.xml: the label map (labels.pbtxt) has no class 'dog'" in said
    assert not (labelled / "x.record").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("filename,class\na.jpg,cat\n", "the table has no column ymin"),
        ("filename,class,xmin,ymin,xmax,ymax\n", "the table has no row"),
        ("filename,class,xmin,ymin,xmax,ymax\n../a.jpg,cat,1,1,2,2\n", "leads out of the folder"),
        ("filename,class,xmin,ymin,xmax,ymax\nnone.jpg,cat,1,1,2,2\n", "image file is missing"),
        ("\0\0", "the table has no row"),
    ],
)
def test_a_bad_table_is_named(research, python, labelled, content, says):
    (labelled / "bad.csv").write_text(content)
    line = f"python {research}/generate_tfrecord.py --csv_input=bad.csv --image_dir=images/all"
    assert says in python(f"{line} --output_path=x.record", code=2)
    assert not (labelled / "x.record").exists()


def test_pascal_with_and_without_difficult_objects(research, python, tmp_path, monkeypatch):
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for number in range(3):
        label_image(
            root / "Annotations", f"2012_{number}", {"cat": [(8, 8, 40, 40), (50, 8, 60, 40)]}
        )
    (root / "JPEGImages").mkdir()
    for image in (root / "Annotations").glob("*.jpg"):
        shutil.move(image, root / "JPEGImages" / image.name)
    hard = root / "Annotations" / "2012_1.xml"
    hard.write_text(hard.read_text().replace("<difficult>0", "<difficult>1", 1))
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "ImageSets/Main/aeroplane_train.txt").write_text("2012_0 -1\n2012_1 -1\n")
    monkeypatch.chdir(tmp_path)
    line = (
        f"python {research}/object_detection/dataset_tools/create_pascal_tf_record.py "
        f"--label_map_path={research}/object_detection/data/pascal_label_map.pbtxt "
        "--data_dir=VOCdevkit --year=VOC2012 --set=train --output_path=pascal_train.record"
    )
    python(line)
    assert [
        len(record["image/object/class/label"]) for record in records("pascal_train.record")
    ] == [
        2,
        2,
    ]
    python(f"{line} --ignore_difficult_instances")
    assert [
        len(record["image/object/class/label"]) for record in records("pascal_train.record")
    ] == [
        2,
        1,
    ]
    assert set(records("pascal_train.record")[0]["image/object/class/label"]) == {8}


def test_pets_are_divided_as_by_the_original(research, python, tmp_path, monkeypatch):
    stems = [f"Abyssinian_{n}" for n in range(1, 11)] + [
        f"great_pyrenees_{n}" for n in range(1, 11)
    ]
    for stem in stems:
        label_image(tmp_path / "annotations/xmls", stem, {"cat": [(8, 8, 40, 40)]})
    (tmp_path / "images").mkdir()
    for image in (tmp_path / "annotations/xmls").glob("*.jpg"):
        shutil.move(image, tmp_path / "images" / image.name)
    (tmp_path / "annotations/xmls/Abyssinian_1.xml").unlink()
    (tmp_path / "annotations/trainval.txt").write_text("".join(f"{s} 1 1 1\n" for s in stems))
    monkeypatch.chdir(tmp_path)
    said = python(
        f"python {research}/object_detection/dataset_tools/create_pet_tf_record.py "
        f"--label_map_path={research}/object_detection/data/pet_label_map.pbtxt "
        f"--data_dir={tmp_path} --output_dir={tmp_path} --num_shards=2"
    )
    assert "annotation file is missing" in said
    # `random.seed(42)`, `random.shuffle`, 70 %.
    random.seed(42)
    random.shuffle(stems)
    wanted = {s for s in stems[:14] if s != "Abyssinian_1"}
    pets = [
        record
        for shard in sorted(tmp_path.glob("pet_faces_train.record-*"))
        for record in records(shard)
    ]
    assert {record["image/filename"][0].decode()[:-4] for record in pets} == wanted
    pyrenees = next(record for record in pets if b"great" in record["image/filename"][0])
    assert list(pyrenees["image/object/class/text"]) == [b"great_pyrenees"]
    assert list(pyrenees["image/object/class/label"]) == [16]


def test_coco_of_one_set(research, python, labelled):
    images = [{"id": n, "file_name": f"img_{n}.jpg", "width": 96, "height": 64} for n in range(3)]
    boxes = [
        {
            "id": 1,
            "image_id": 0,
            "category_id": 17,
            "bbox": [8, 8, 32, 32],
            "area": 1,
            "iscrowd": 0,
        },
        {"id": 2, "image_id": 1, "category_id": 1, "bbox": [8, 8, 32, 32], "area": 1, "iscrowd": 0},
    ]
    categories = [{"id": 1, "name": "person"}, {"id": 17, "name": "cat"}]
    content = {"images": images, "annotations": boxes, "categories": categories}
    (labelled / "instances.json").write_text(json.dumps(content))
    line = (
        f"python {research}/object_detection/dataset_tools/create_coco_tf_record.py "
        "--val_image_dir=images/all --val_annotations_file=instances.json --output_dir=out"
    )
    assert "there are 3 files, and not 50" in python(f"{line} --logtostderr")
    assert len(list((labelled / "out").glob("coco_val.record-*-of-00003"))) == 3
    python(f"{line} --remove_non_person_images")
    (only,) = (labelled / "out").glob("coco_val.record-*")
    assert list(records(only)[0]["image/object/class/label"]) == [1]
    assert "--include_masks is not supported" in python(f"{line} --include_masks", code=2)
