"""Folders of annotated images as people have them, converted whole."""

import json
import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from stillbox.checking.planning_records import records_of
from stillbox.errors import UserError
from stillbox.records import splits
from stillbox.records.conversion import ConversionOptions
from stillbox.records.data_folder import DataFolder
from stillbox.records.folder import convert_folder
from stillbox.records.folder_content import FolderOptions
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource
from tests.helpers import refused

SIZE = (40, 60)
"""Height and width."""


def picture(path, number=0):
    """Writes a picture that is near-identical to none of another number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = np.random.default_rng(number).integers(0, 255, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(blocks).resize(SIZE[::-1], Image.Resampling.BILINEAR).save(path)
    return path


def voc_xml(*objects, size=SIZE, filename=""):
    inside = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin>"
        f"<xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
        for name, (y1, x1, y2, x2) in objects
    )
    sides = f"<size><width>{size[1]}</width><height>{size[0]}</height></size>"
    return f"<annotation><filename>{filename}</filename>{sides}{inside}</annotation>"


def voc_folder(root, names=("a", "b", "c", "d")):
    for number, name in enumerate(names):
        picture(root / f"{name}.png", number)
        (root / f"{name}.xml").write_text(voc_xml(("cat", (4, 6, 24, 36))))
    return root


def examples(converted, part="train"):
    label_map = LabelMap.from_file(converted.label_map)
    source = ExampleSource([getattr(converted, part)], label_map)
    return {e.filename: e for e in map(source.example, range(len(source)))}


def test_annotations_beside_images_with_a_split_of_our_own(tmp_path):
    folder = voc_folder(tmp_path / "photos")
    converted = convert_folder(folder, tmp_path / "out")
    assert (converted.format, converted.classes) == ("voc", ("cat",))
    assert converted.train_images + converted.validation_images == converted.boxes == 4
    assert converted.validation_images >= 1
    both = examples(converted) | examples(converted, "validation")
    assert sorted(both) == ["a.png", "b.png", "c.png", "d.png"]
    box = [4 / 40, 6 / 60, 24 / 40, 36 / 60]
    for example in both.values():
        np.testing.assert_allclose(example.boxes, [box], rtol=1e-6)


def test_a_finished_conversion_is_used_again_until_something_changes(tmp_path):
    folder, out = voc_folder(tmp_path / "photos"), tmp_path / "out"
    first = convert_folder(folder, out)
    again = convert_folder(folder, out)
    assert again.reused
    assert again == replace(first, reused=True)
    with pytest.raises(UserError, match=r"other data or with other options[\s\S]*overwrite"):
        convert_folder(folder, out, FolderOptions(seed=1))
    (folder / "a.xml").write_text(voc_xml(("cat", (4, 6, 24, 36)), ("dog", (0, 0, 9, 9))))
    changed = convert_folder(folder, out, options=ConversionOptions(overwrite=True))
    assert (changed.reused, changed.classes) == (False, ("cat", "dog"))
    assert {path.name for path in tmp_path.iterdir()} >= {"photos", "out"}
    assert not list(tmp_path.glob(".out*"))


def test_an_output_folder_that_is_a_link_stays_one(tmp_path):
    (tmp_path / "disk/data").mkdir(parents=True)
    out = tmp_path / "out"
    out.symlink_to(tmp_path / "disk/data")
    converted = convert_folder(voc_folder(tmp_path / "photos"), out)
    assert out.is_symlink()
    assert converted.label_map.is_file()
    assert (tmp_path / "disk/data" / converted.label_map.name).is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "out", "photos"]
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["data"]


def test_an_output_folder_of_something_else_is_left_alone(tmp_path):
    folder, out = voc_folder(tmp_path / "photos"), tmp_path / "out"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="no conversion"):
            convert_folder(folder, out, options=ConversionOptions(overwrite=overwrite))
    assert (out / "letter.txt").read_text() == "dear"


def test_records_inside_the_folder_are_not_read_as_data(tmp_path):
    folder = voc_folder(tmp_path / "photos")
    convert_folder(folder, folder / "records")
    assert convert_folder(folder, folder / "records").reused
    assert convert_folder(folder, tmp_path / "elsewhere").boxes == 4


def test_ids_and_names_of_coco_files_stay(tmp_path):
    for part in ("train", "valid"):
        entries = []
        for number, name in enumerate(("a.png", "deep/b.png"), start=1):
            picture(tmp_path / "set" / part / name, number + 2 * (part == "valid"))
            entries.append({"id": number, "file_name": name, "width": 60, "height": 40})
        box = {"category_id": 1, "bbox": [6, 4, 30, 20]}
        content = {
            "images": entries,
            "annotations": [{"id": n, "image_id": n, **box} for n in (1, 2)],
            "categories": [{"id": 1, "name": "cat"}],
        }
        (tmp_path / "set" / part / "_annotations.coco.json").write_text(json.dumps(content))
    converted = convert_folder(tmp_path / "set", tmp_path / "out")
    for part in ("train", "validation"):
        ids = {name: example.image_id for name, example in examples(converted, part).items()}
        assert ids == {"a.png": "1", "deep/b.png": "2"}
    second = (tmp_path / "set/valid/_annotations.coco.json").read_text()
    shutil.move(tmp_path / "set/valid", tmp_path / "set/train/more")
    (tmp_path / "set/train/more/_annotations.coco.json").unlink()
    moved = second.replace("a.png", "more/a.png").replace("deep", "more/deep")
    (tmp_path / "set/train/second.json").write_text(moved)
    picture(tmp_path / "set/valid/a.png", 9)
    content["images"], content["annotations"] = entries[:1], content["annotations"][:1]
    (tmp_path / "set/valid/third.json").write_text(json.dumps(content))
    mixed = convert_folder(tmp_path / "set", tmp_path / "mixed", FolderOptions(bad_records="fail"))
    ids = {name: example.image_id for name, example in examples(mixed).items()}
    names = ("a.png", "deep/b.png", "more/a.png", "more/deep/b.png")
    assert ids == {name: f"train/{name}" for name in names}
    assert any("image id occurs twice in a set" in said for said in mixed.problems)


def test_image_sets_state_the_split(tmp_path):
    folder = voc_folder(tmp_path / "VOC")
    lists = folder / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for name, stems in {"train": "a\nb\n", "val": "c\n", "cat_train": "d 1\n"}.items():
        (lists / f"{name}.txt").write_text(stems)
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.split == "stated by the data set"
    assert (converted.train_images, converted.validation_images) == (2, 1)
    assert any("image in no split" in problem for problem in converted.problems)


def test_folders_state_the_split_and_equal_names_stay_apart(tmp_path):
    for part in ("train", "valid", "test"):
        voc_folder(tmp_path / "set" / part, names=("a", "b"))
    converted = convert_folder(tmp_path / "set", tmp_path / "out")
    assert converted.train_images == converted.validation_images == converted.test_images == 2
    assert sorted(examples(converted)) == ["train/a.png", "train/b.png"]
    assert sorted(examples(converted, "test")) == ["test/a.png", "test/b.png"]
    # The same pictures are in all three.
    assert sum("image of train is in val too" in p for p in converted.problems) == 1


def test_near_identical_images_are_on_one_side_and_the_split_is_stable(tmp_path):
    folder = voc_folder(tmp_path / "photos", names=[f"n{n}" for n in range(12)])
    for copy in ("copy1", "copy2", "copy3"):
        image = Image.open(folder / "n0.png").resize((90, 60), Image.Resampling.BILINEAR)
        image.save(folder / f"{copy}.jpg", quality=60)
        shutil.copy(folder / "n0.xml", folder / f"{copy}.xml")
    converted = convert_folder(folder, tmp_path / "out")
    train, val = examples(converted), examples(converted, "validation")
    group = {"n0.png", "copy1.jpg", "copy2.jpg", "copy3.jpg"}
    assert group <= set(train) or group <= set(val)
    assert any("near-identical" in problem for problem in converted.problems)
    picture(folder / "new.png", 99)
    shutil.copy(folder / "n0.xml", folder / "new.xml")
    more = convert_folder(folder, tmp_path / "more")
    assert set(examples(more)) >= set(train)
    assert set(examples(more, "validation")) >= set(val)


def test_images_are_compared_once(tmp_path, monkeypatch):
    compared, compare = [], splits._close_pairs
    monkeypatch.setattr(splits, "_close_pairs", lambda *a: compared.append(a) or compare(*a))
    convert_folder(voc_folder(tmp_path / "photos"), tmp_path / "out")
    # Upright, and in the position of mirrored and turned copies.
    assert len(compared) == 2


def test_bands_that_are_flat_in_many_images_are_not_compared(monkeypatch):
    lengths, compare = [], splits._pairs_of_runs

    def counted(prints, order, keys):
        lengths.append(len(order))
        return compare(prints, order, keys)

    monkeypatch.setattr(splits, "_MOST_FLAT", 3)
    monkeypatch.setattr(splits, "_pairs_of_runs", counted)
    rng = np.random.default_rng(0)
    # Alternating bits, which are no flat band, in three of four words.
    hashes = rng.integers(0, 2**63, (6, 4), np.uint64) | np.uint64(0x5555555555555555)
    hashes[:3, 0], hashes[3:, 0], hashes[5] = 0, 2**64 - 1, hashes[4]
    small = rng.normal(size=(6, 256)).astype(np.float32)
    small[5] = small[4]
    small /= np.linalg.norm(small, axis=1, keepdims=True)
    views = splits.Views(hashes, small)
    digests = [b"%d" % n for n in range(6)]
    prints = splits.Fingerprints(np.arange(6), digests, [""] * 6, views, views)
    assert prints.near_identical == [[4, 5]]
    assert sorted(lengths) == [0] * 8 + [6] * 24


def test_lists_that_leave_no_image_to_validate_on_are_not_used(tmp_path):
    folder = voc_folder(tmp_path / "VOC")
    lists = folder / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a\n")
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.train_images + converted.validation_images == 4


def yolo_set(root, images, labels, names=("a", "b", "c"), **stated):
    """Writes images, their labels and a `data.yaml` with the `stated` folders."""
    for number, name in enumerate(names):
        picture(root / images / f"{name}.png", number)
        (root / labels).mkdir(parents=True, exist_ok=True)
        (root / labels / f"{name}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (root / "data.yaml").write_text(json.dumps({"names": ["cat"], **stated}))
    return root


def voc_list(root):
    lists = voc_folder(root) / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "val.txt").write_text("a\nb\nc\n")
    return root


def pictures(folder):
    for number in range(3):
        picture(folder / f"{number}.png", number)


def coco_file(root):
    box = {"category_id": 1, "bbox": [6, 4, 30, 20]}
    pictures(root / "photos")
    (root / "annotations").mkdir()
    content = {
        "images": [{"id": n, "file_name": f"{n}.png"} for n in range(3)],
        "annotations": [{"id": n, "image_id": n, **box} for n in range(3)],
        "categories": [{"id": 1, "name": "cat"}],
    }
    (root / "annotations/instances_val2017.json").write_text(json.dumps(content))
    return root


def rows_of(root, part):
    objects = {"bbox": [[6, 4, 30, 20]], "categories": ["cat"]}
    pictures(root / part)
    lines = [json.dumps({"file_name": f"{n}.png", "objects": objects}) for n in range(3)]
    (root / part / "metadata.jsonl").write_text("\n".join(lines))
    return root


def cvat_subset(root):
    box = '<box label="cat" xtl="6" ytl="4" xbr="36" ybr="24"/>'
    pictures(root)
    images = [f'<image id="{n}" name="{n}.png" subset="Validation">{box}</image>' for n in range(3)]
    (root / "annotations.xml").write_text(f"<annotations>{''.join(images)}</annotations>")
    return root


COCO_YAML = {"train": "images/train2017", "val": "images/val2017"}
LONE = {
    "data.yaml": lambda root: yolo_set(root, "images/val2017", "labels/val2017", **COCO_YAML),
    "data.yaml of another folder": lambda root: yolo_set(
        root, "seen/images", "seen/labels", train="../train/images", val="seen"
    ),
    "Roboflow": lambda root: yolo_set(root, "valid/images", "valid/labels"),
    "Roboflow's test": lambda root: yolo_set(root, "test/images", "test/labels"),
    "list of VOC": voc_list,
    "COCO": coco_file,
    "Hugging Face": lambda root: rows_of(root, "validation"),
    "CVAT": cvat_subset,
}


@pytest.mark.parametrize("kind", LONE)
def test_images_to_score_on_are_never_trained_on(tmp_path, kind):
    converted = convert_folder(LONE[kind](tmp_path / "set"), tmp_path / "out")
    assert (converted.train, converted.train_images, converted.validation_images) == ("", 0, 3)
    assert converted.split == "stated by the data set: images to score on, none to train on"
    assert len(examples(converted, "validation")) == 3
    with pytest.raises(UserError, match="states 3 images to score on and none to train on"):
        records_of(tmp_path / "set", tmp_path / "out")


def test_an_empty_training_folder_counts_as_none(tmp_path):
    folder = yolo_set(tmp_path / "set", "images/val", "labels/val", train="images/train")
    (folder / "images/train").mkdir()
    assert convert_folder(folder, tmp_path / "out").train_images == 0


def test_a_lone_training_set_is_split_and_that_is_reported(tmp_path):
    folder = yolo_set(tmp_path / "set", "train/images", "train/labels", val="../valid/images")
    with refused("set/data.yaml: val"):
        convert_folder(folder, tmp_path / "out")
    folder = yolo_set(tmp_path / "set", "train/images", "train/labels")
    converted = convert_folder(folder, tmp_path / "out", FolderOptions(validation_share=0.4))
    assert converted.train_images
    assert converted.train_images + converted.validation_images == 3
    assert converted.split == (
        "the data set states no image to score on; 40% of the images validate, chosen by a hash of "
        "their content, seed 0"
    )


@pytest.mark.parametrize("linked", ["images", "labels", "images/a.png"])
def test_a_link_out_of_the_folder_is_named_with_its_remedy(tmp_path, linked):
    folder = yolo_set(tmp_path / "set", "images", "labels", names="a")
    outside = tmp_path / "elsewhere" / linked
    outside.parent.mkdir(parents=True, exist_ok=True)
    (folder / linked).rename(outside)
    (folder / linked).symlink_to(outside)
    with pytest.raises(UserError) as caught:
        convert_folder(folder, tmp_path / "out")
    assert linked in str(caught.value)
    assert "symbolic link" in caught.value.what
    assert re.search("^copy .* or give .* both$", caught.value.fix)


def test_a_hidden_link_is_no_part_of_the_folder(tmp_path):
    folder = yolo_set(tmp_path / "set", "images", "labels", names="a")
    (folder / ".venv").symlink_to(tmp_path)
    assert DataFolder(folder).links == []


def test_a_linked_annotation_file_is_named(tmp_path):
    folder = coco_file(tmp_path / "set")
    file = folder / "annotations/instances_val2017.json"
    file.symlink_to(file.rename(tmp_path / "moved.json"))
    with refused("set", "annotations/instances_val2017.json"):
        convert_folder(folder, tmp_path / "out")


def test_links_that_stay_inside_are_followed(tmp_path):
    folder = yolo_set(tmp_path / "set", "pool/one", "labels/one", train="first", val="second")
    yolo_set(folder, "pool/two", "labels/two", names=("d", "e"), train="first", val="second")
    for link, target in (("first", "pool/one"), ("second", "pool/two"), ("e.png", "pool/two/e")):
        (folder / link).symlink_to(folder / target)
    converted = convert_folder(folder, tmp_path / "out")
    assert sorted(examples(converted)) == ["a.png", "b.png", "c.png"]
    assert sorted(examples(converted, "validation")) == ["d.png", "e.png"]


@pytest.mark.parametrize("write", [voc_folder, lambda root, names: yolo_set(root, ".", ".", names)])
def test_names_that_are_no_utf_8_get_through(tmp_path, write):
    folder = write(tmp_path / "set", names=(os.fsdecode(b"caf\xe9"), os.fsdecode(b"\xff"), "c"))
    converted = convert_folder(folder, tmp_path / "out")
    both = examples(converted) | examples(converted, "validation")
    assert sorted(both) == ["%FF.png", "c.png", "caf%E9.png"]
    assert convert_folder(folder, tmp_path / "out").reused


def test_copies_of_one_image_are_split_and_classes_that_differ_only_by_case_are_named(tmp_path):
    folder = voc_folder(tmp_path / "photos")
    for name in "bcd":
        shutil.copy(folder / "a.png", folder / f"{name}.png")
    (folder / "a.xml").write_text(voc_xml(("Cat", (4, 6, 24, 36))))
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.validation_images in (1, 2, 3)
    assert converted.classes == ("Cat", "cat")
    for message in ("all images are near-identical", "differ only by case"):
        assert any(message in problem for problem in converted.problems)


def test_one_image_cannot_be_split(tmp_path):
    folder = voc_folder(tmp_path / "photos", names=("a",))
    with refused(None, 1):
        convert_folder(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_report_holds_what_was_done(tmp_path):
    converted = convert_folder(voc_folder(tmp_path / "photos"), tmp_path / "out")
    text = converted.report.read_text()
    assert text.startswith("Format: Pascal VOC XML\nSplit: 20% of the images validate")
    stored = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert stored["result"]["boxes"] == 4
