"""Folders of annotated images as people have them, converted whole."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from stillbox.errors import UserError
from stillbox.records.conversion_job import ConversionOptions
from stillbox.records.folder import convert_folder
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource

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
    assert (again.train, again.classes, again.problems) == (
        first.train,
        first.classes,
        first.problems,
    )
    with pytest.raises(UserError, match=r"other data or with other options[\s\S]*--overwrite"):
        convert_folder(folder, out, seed=1)
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


def test_records_inside_the_folder_are_no_input(tmp_path):
    folder = voc_folder(tmp_path / "photos")
    convert_folder(folder, folder / "records")
    assert convert_folder(folder, folder / "records").reused
    assert convert_folder(folder, tmp_path / "elsewhere").boxes == 4


def test_image_sets_state_the_split(tmp_path):
    folder = voc_folder(tmp_path / "VOC")
    lists = folder / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for name, stems in {"train": "a\nb\n", "val": "c\n", "cat_train": "d 1\n"}.items():
        (lists / f"{name}.txt").write_text(stems)
    converted = convert_folder(folder, tmp_path / "out")
    assert (converted.split, converted.train_images, converted.validation_images) == (
        "stated by the data set",
        2,
        1,
    )
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


def test_lists_that_leave_no_image_to_validate_on_are_not_used(tmp_path):
    folder = voc_folder(tmp_path / "VOC")
    lists = folder / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a\n")
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.train_images + converted.validation_images == 4


def test_copies_of_one_image_are_split_all_the_same(tmp_path):
    folder = voc_folder(tmp_path / "photos")
    for name in "bcd":
        shutil.copy(folder / "a.png", folder / f"{name}.png")
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.validation_images in (1, 2, 3)
    assert any("all images are near-identical" in problem for problem in converted.problems)


def test_classes_that_differ_only_by_case_are_reported(tmp_path):
    folder = voc_folder(tmp_path / "photos")
    (folder / "a.xml").write_text(voc_xml(("Cat", (4, 6, 24, 36))))
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.classes == ("Cat", "cat")
    assert any("differ only by case" in problem for problem in converted.problems)


def test_one_image_cannot_be_split(tmp_path):
    folder = voc_folder(tmp_path / "photos", names=("a",))
    with pytest.raises(UserError, match="1 image cannot be split"):
        convert_folder(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_report_holds_what_was_done(tmp_path):
    converted = convert_folder(voc_folder(tmp_path / "photos"), tmp_path / "out")
    text = converted.report.read_text()
    assert text.startswith("Format: Pascal VOC XML\nSplit: 20% of the images validate")
    stored = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert stored["result"]["boxes"] == 4
