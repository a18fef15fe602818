"""Annotations become records once; caches of the originals are read."""

import json
import shutil

import numpy as np
import pytest

from packages.legacy.tests.model_maker.conftest import CLASSES
from stillbox.errors import UserError
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource
from stillbox_legacy.model_maker.mediapipe_model_maker.object_detector import Dataset
from stillbox_legacy.model_maker.tflite_model_maker.object_detector import DataLoader
from tests.helpers import refused

NAMES = list(CLASSES.values())


def examples(data):
    records = data.records
    source = ExampleSource(records.paths, LabelMap.from_file(records.label_map))
    return [source.parse(index).example for index in range(len(source))]


def voc(annotated, folder, **arguments):
    paths = str(annotated / "images"), str(annotated / "Annotations")
    return DataLoader.from_pascal_voc(*paths, NAMES, cache_dir=str(folder), **arguments)


def test_pascal_voc(annotated, tmp_path):
    data = voc(annotated, tmp_path, num_shards=3)
    assert (len(data), data.size, data.label_map) == (10, 10, CLASSES)
    assert len(list(tmp_path.glob("*/*.tfrecord"))) == 3
    read = examples(data)
    assert sorted(len(example.boxes) for example in read) == [1] * 5 + [2] * 5
    fuller = next(example for example in read if len(example.boxes) == 2)
    assert fuller.class_ids.tolist() == [1, 2]
    sides = np.array([fuller.height, fuller.width] * 2)
    np.testing.assert_allclose(fuller.boxes[0] * sides, [12, 10, 50, 40], rtol=1e-5)


def test_difficult_objects_names_and_numbers_of_images(annotated, tmp_path):
    data = voc(annotated, tmp_path, ignore_difficult_instances=True)
    assert {len(example.boxes) for example in examples(data)} == {1}
    stem = sorted((annotated / "Annotations").iterdir())[3].stem
    chosen = voc(annotated, tmp_path, annotation_filenames=[stem])
    assert [example.filename.partition(".")[0] for example in examples(chosen)] == [stem]
    assert len(voc(annotated, tmp_path, max_num_images=4)) == 4


def test_a_cache_is_used_again_until_a_file_changes(annotated, tmp_path):
    copied = tmp_path / "own"
    shutil.copytree(annotated, copied)
    first = voc(copied, tmp_path / "cache").records
    assert voc(copied, tmp_path / "cache").records == first
    next((copied / "Annotations").iterdir()).unlink()
    assert len(voc(copied, tmp_path / "cache")) == 9


def test_classes_that_are_not_named_are_said(annotated, tmp_path, capsys):
    paths = str(annotated / "images"), str(annotated / "Annotations")
    data = DataLoader.from_pascal_voc(*paths, {3: "small"}, cache_dir=str(tmp_path))
    assert {tuple(example.class_ids) for example in examples(data)} == {(3,)}
    assert "unknown class" in capsys.readouterr().err


def test_csv(annotated, tmp_path):
    path = str(annotated / "table.csv")
    train, validation, test = DataLoader.from_csv(path, cache_dir=str(tmp_path))
    assert (len(train), len(validation), len(test)) == (6, 2, 2)
    assert train.label_map == CLASSES
    by_voc = {example.filename: example for example in examples(voc(annotated, tmp_path))}
    for example in examples(train) + examples(validation):
        np.testing.assert_allclose(example.boxes, by_voc[example.filename].boxes, atol=1e-6)
    again = DataLoader.from_cache(str(test.records.label_map.parent))
    assert again.records == test.records


def test_csv_with_a_folder_of_images_and_without_a_set(annotated, tmp_path):
    lines = (annotated / "table.csv").read_text().replace(str(annotated / "images") + "/", "")
    kept = [line for line in lines.splitlines() if not line.startswith("VAL")]
    path = tmp_path / "table.csv"
    path.write_text("\n".join([*kept, kept[0].replace("TRAINING", "UNASSIGNED")]))
    images = str(annotated / "images")
    train, validation, _ = DataLoader.from_csv(str(path), images, cache_dir=str(tmp_path))
    assert len(train) == 6
    assert validation is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("TRAIN,gs://bucket/a.jpg,cat,0,0,,,1,1,,", "storage.googleapis.com/bucket/a.jpg"),
        ("TRAIN,a.jpg,cat", "table.csv:1: the row has 3 cells"),
        ("TRAIN,../a.jpg,cat,0,0,,,1,1,,", "leads out of the folder"),
        ("TRAIN,a.jpg,cat,0,0,,,1,1,,", "image file is missing"),
        ("", "the file has no row"),
        pytest.param(
            *('TRAIN,a.jpg,"cat' + ",0" * 100_000, "table.csv:1: this is not CSV: field larger"),
            id="a quote that stays open",
        ),
    ],
)
def test_wrong_csv(tmp_path, line, message):
    (tmp_path / "table.csv").write_text(line)
    with pytest.raises(UserError, match=message):
        DataLoader.from_csv(str(tmp_path / "table.csv"), str(tmp_path), cache_dir=str(tmp_path))


def test_an_address_in_the_cloud_is_refused():
    with pytest.raises(UserError, match=r"https://storage\.googleapis\.com/a/b\.csv"):
        DataLoader.from_csv("gs://a/b.csv")


def test_coco_and_voc_folders(annotated, tmp_path):
    data = Dataset.from_coco_folder(str(annotated), cache_dir=str(tmp_path / "coco"))
    assert (data.size, len(data), data.num_classes) == (10, 10, 3)
    assert data.label_names == ["background", "small", "large"]
    other = Dataset.from_pascal_voc_folder(str(annotated), cache_dir=str(tmp_path / "voc"))
    # There classes are numbered by name.
    assert other.label_names == ["background", "large", "small"]
    boxes = {example.filename: example.boxes for example in examples(other)}
    for example in examples(data):
        np.testing.assert_allclose(example.boxes, boxes[example.filename], atol=1e-6)


def test_a_class_with_the_id_of_the_background(annotated, tmp_path):
    shutil.copytree(annotated, tmp_path / "own")
    path = tmp_path / "own/labels.json"
    content = json.loads(path.read_text())
    for annotation in content["annotations"]:
        annotation["category_id"] = 0
    path.write_text(json.dumps(content))
    with refused("own/labels.json"):
        Dataset.from_coco_folder(str(tmp_path / "own"), cache_dir=str(tmp_path))


@pytest.mark.parametrize("fraction", [0.6, 0.25])
def test_split(annotated, tmp_path, fraction):
    data = Dataset.from_coco_folder(str(annotated), cache_dir=str(tmp_path))
    first, rest = data.split(fraction)
    assert first.size == int(10 * fraction)
    names = [example.filename for part in (first, rest) for example in examples(part)]
    assert names == [example.filename for example in examples(data)]
    inner, _ = rest.split(0.5)
    assert inner.size == rest.size // 2


@pytest.mark.parametrize("fraction", [0, 1, 0.01, 1.5])
def test_a_split_with_an_empty_part(annotated, tmp_path, fraction):
    data = voc(annotated, tmp_path)
    with refused("split"):
        data.split(fraction)


@pytest.mark.parametrize("ending", ["meta_data", "metadata"])
def test_caches_of_the_originals(annotated, tmp_path, ending):
    made = voc(annotated, tmp_path, num_shards=1)
    (shard,) = made.records.label_map.parent.glob("*.tfrecord")
    shutil.copy(shard, tmp_path / "abc-00000-of-00001.tfrecord")
    (tmp_path / f"abc_{ending}.yaml").write_text(
        "label_map:\n  0: background\n  1: small\n  2: large\nsize: 10\n"
    )
    data = DataLoader.from_cache(str(tmp_path / "abc"))
    assert (len(data), data.label_map) == (10, CLASSES)
    assert len(examples(data)) == 10
    direct = DataLoader(str(tmp_path / "abc*.tfrecord"), 10, NAMES)
    assert direct.label_map == CLASSES


@pytest.mark.parametrize("content", ["size: 3", "label_map: {a: b}\nsize: 3", "[1]", "size: a"])
def test_a_damaged_cache(tmp_path, content):
    (tmp_path / "abc_meta_data.yaml").write_text(content)
    with refused("abc_meta_data.yaml"):
        DataLoader.from_cache(str(tmp_path / "abc"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("cocoa", "'coco'"),
        ({0: "cat"}, "no class but background|no item|id 0"),
        ({1: "cat", 2: "cat"}, "two ids"),
        ({"1": "cat"}, "is no class"),
    ],
)
def test_wrong_classes(annotated, tmp_path, labels, message):
    paths = str(annotated / "images"), str(annotated / "Annotations")
    with pytest.raises(UserError, match=message):
        DataLoader.from_pascal_voc(*paths, labels, cache_dir=str(tmp_path))


def test_classes_of_a_file_and_by_name(annotated, tmp_path):
    path = tmp_path / "classes.yaml"
    path.write_text("1: small\n2: large\n")
    paths = str(annotated / "images"), str(annotated / "Annotations")
    data = DataLoader.from_pascal_voc(*paths, str(path), cache_dir=str(tmp_path))
    assert data.label_map == CLASSES
    arguments = {"size": 10, "tfrecord_file_patten": str(data.tfrecord_file_patten)}
    assert DataLoader(**arguments, label_map="voc").label_map[20] == "tvmonitor"
    assert DataLoader(**arguments, label_map="coco").label_map[90] == "toothbrush"


@pytest.mark.parametrize("prefix", ["../out", "a/b"])
def test_a_cache_stays_in_its_folder(annotated, tmp_path, prefix):
    with refused("cache_prefix_filename"):
        voc(annotated, tmp_path, cache_prefix_filename=prefix)
