"""Splits as they are stated, on any machine, and images of one photograph on one side."""

import numpy as np
import pytest
from PIL import Image

from stillbox.errors import UserError
from stillbox.records.folder import convert_folder
from tests.helpers import refused
from tests.records.builders import put
from tests.records.situations import FORMATS, STEMS, Boxes, pictures
from tests.records.test_folder import examples, voc_folder, voc_xml

MOVES = {
    "mirrored": Image.Transpose.FLIP_LEFT_RIGHT,
    "upside down": Image.Transpose.FLIP_TOP_BOTTOM,
    "half a turn": Image.Transpose.ROTATE_180,
    "a quarter left": Image.Transpose.ROTATE_90,
    "a quarter right": Image.Transpose.ROTATE_270,
    "transposed": Image.Transpose.TRANSPOSE,
}


def photograph(number):
    """Blobs of many sizes; two photographs have nothing in common."""
    rng = np.random.default_rng(number)
    small = rng.normal(size=(9, 12, 3)).cumsum(0).cumsum(1)
    small = 255 * (small - small.min()) / np.ptp(small)
    image = Image.fromarray(small.astype(np.uint8))
    return image.resize((320, 240), Image.Resampling.BICUBIC)


def copies(root, move):
    """Eight photographs and a copy of each that was moved and encoded again."""
    root.mkdir()
    for number in range(8):
        image = photograph(number)
        image.save(root / f"a{number}.jpg", quality=90)
        image.transpose(move).save(root / f"copy_of_{number}.jpg", quality=70)
    for file in root.glob("*.jpg"):
        with Image.open(file) as image:
            size = image.size[::-1]
        xml = voc_xml(("cat", (10, 20, 90, 100)), size=size)
        file.with_suffix(".xml").write_text(xml)
    return root


@pytest.mark.parametrize("move", MOVES)
def test_copies_in_another_position_are_on_one_side_and_said(tmp_path, move):
    converted = convert_folder(copies(tmp_path / "set", MOVES[move]), tmp_path / "out")
    train = {name[-5] for name in examples(converted)}
    validation = {name[-5] for name in examples(converted, "validation")}
    assert train
    assert validation
    assert not train & validation
    assert any("8 x similar, mirrored or turned images" in p for p in converted.problems)


def test_copies_in_another_position_between_stated_splits_are_a_leak(tmp_path):
    folder = tmp_path / "set"
    copies(folder, MOVES["mirrored"])
    for part, pattern in (("train", "a*"), ("val", "copy*")):
        (folder / part).mkdir()
        for file in folder.glob(f"{pattern}.*"):
            file.rename(folder / part / file.name)
    said = convert_folder(folder, tmp_path / "out").problems
    assert any(problem.startswith("8 x image of train is in val too") for problem in said)


def test_versions_of_roboflow_are_on_one_side(tmp_path):
    folder = tmp_path / "set"
    for number in range(24):
        name = f"cat_{number % 6}_jpg.rf.{number:032x}"
        folder.mkdir(exist_ok=True)
        photograph(number).save(folder / f"{name}.jpg")
        (folder / f"{name}.xml").write_text(voc_xml(("cat", (4, 6, 24, 36)), size=(240, 320)))
    converted = convert_folder(folder, tmp_path / "out")
    sides = [{name[:5] for name in examples(converted, part)} for part in ("train", "validation")]
    assert not sides[0] & sides[1]
    assert sides[0] | sides[1] == {f"cat_{number}" for number in range(6)}
    assert any("18 x versions of one photograph by their names" in p for p in converted.problems)


PLACES = {
    "folders of Windows": ("C:\\Users\\me\\set", "images\\a", "images\\b"),
    "a drive": (".", "D:\\data\\set\\images\\a", "D:\\data\\set\\images\\b"),
    "slashes and a drive": (".", "D:/set/images/a", "D:/set/images/b"),
    "Colab": ("/content/set", "/content/set/images/a", "/content/set/images/b"),
    "Kaggle": ("../input/set", "images/a", "images/b"),
    "quotes": (".", "'images/a'", '"images/b"'),
    "dots": (".", "../images/a", "./images/b/"),
    "capitals": (".", "Images/A", "IMAGES/b"),
    "lists": (".", "a.txt", "b.txt"),
}


@pytest.mark.parametrize("case", PLACES)
def test_stated_splits_are_found_wherever_the_set_was_made(tmp_path, case):
    base, train, val = PLACES[case]
    root = tmp_path / "set"
    pictures(root)
    FORMATS["YOLO"](root, Boxes())
    for stem in STEMS:
        target = root / "images" / ("a" if stem < "p4" else "b") / f"{stem}.png"
        target.parent.mkdir(exist_ok=True)
        (root / f"images/{stem}.png").rename(target)
    for name, stems in (("a", STEMS[:4]), ("b", STEMS[4:])):
        if "lists" in case:
            lines = (f"/content/set/images/{name}/{stem}.png\n" for stem in stems)
            put(root, f"{name}.txt", "".join(lines))
    # A YAML text in single quotes has no escapes.
    entries = (text.replace("'", "''") for text in (base, train, val))
    texts = "path: '{}'\ntrain: '{}'\nval: '{}'\n".format(*entries)
    put(root, "data.yaml", texts + "names: [cat]\n")
    converted = convert_folder(root, tmp_path / "out")
    assert converted.split == "stated by the data set"
    assert sorted(examples(converted)) == [f"{stem}.png" for stem in STEMS[:4]]
    assert sorted(examples(converted, "validation")) == [f"{stem}.png" for stem in STEMS[4:]]


@pytest.mark.parametrize(
    ("yaml", "where"),
    [
        ("train: images\nval: other\n", r"data\.yaml: val"),
        ("train: images\nvalid: D:\\other\n", r"data\.yaml: valid"),
        ("train: other\n", r"data\.yaml: train"),
        ("train: images\nval: b.txt\n", r"b\.txt:1"),
        ("train: images\nval: [images, other]\n", r"data\.yaml: val"),
    ],
)
def test_a_stated_split_that_is_not_there_stops(tmp_path, yaml, where):
    root = tmp_path / "set"
    pictures(root)
    FORMATS["YOLO"](root, Boxes())
    put(root, "b.txt", "gone1.png\ngone2.png\n")
    put(root, "data.yaml", f"{yaml}names: [cat]\n")
    with pytest.raises(UserError, match=where) as caught:
        convert_folder(root, tmp_path / "out")
    assert caught.value.fix


def test_a_list_of_voc_may_have_folders_and_suffixes_and_must_name_images(tmp_path):
    folder = voc_folder(tmp_path / "VOC")
    put(folder, "ImageSets/Main/train.txt", "JPEGImages/a.png 1\nb.png -1\n")
    put(folder, "ImageSets/Main/val.txt", "c\nd\n")
    converted = convert_folder(folder, tmp_path / "out")
    assert sorted(examples(converted)) == ["a.png", "b.png"]
    put(folder, "ImageSets/Main/val.txt", "x1\nx2\n")
    with refused("VOC/ImageSets/Main/val.txt:1", "x1"):
        convert_folder(folder, tmp_path / "other")


def test_a_split_without_a_box_is_said_first(tmp_path, capsys):
    from stillbox.cli.main import main

    for part in ("train", "val"):
        voc_folder(tmp_path / "set" / part, [f"{part}{number}" for number in range(3)])
    for file in (tmp_path / "set/val").glob("*.xml"):
        file.write_text(voc_xml(("cat", (4, 6, 4, 36))))
    for number, image in enumerate(sorted((tmp_path / "set").rglob("*.png"))):
        photograph(number).resize((60, 40)).save(image)
    words = ["data", "convert", str(tmp_path / "set"), "--output", str(tmp_path / "out")]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("val has no box that can be used\n")
