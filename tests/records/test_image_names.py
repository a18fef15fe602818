"""Image names as annotations have them, matched with the files that are there."""

import unicodedata

import pytest

from stillbox.records.data_folder import DataFolder
from stillbox.records.folder import convert_folder
from stillbox.records.formats.coco import read_coco
from stillbox.records.problems import ConversionLog
from tests.helpers import refused
from tests.records.builders import put
from tests.records.situations import FORMATS, Boxes, box_of, save_picture
from tests.records.test_folder import examples, picture, voc_xml

NAMED = ("COCO", "CVAT", "CSV", "Label Studio", "Hugging Face")
# What is in the folder, and what annotations call it.
SAME = {
    "decomposed": ("café.png", unicodedata.normalize("NFD", "café.png")),
    "capitals": ("Image One.PNG", "image one.png"),
    "blanks as in addresses": ("image one.png", "image%20one.png"),
    "a token": ("one.png", "one.png?token=abc"),
    "a suffix": ("one.jpeg", "one.png"),
    "no suffix": ("one.png", "one"),
    "folders of another machine": ("one.png", "/content/set/train/one.png"),
    "folders of Windows": ("one.png", "C:\\Users\\me\\set\\one.png"),
    "a folder above": ("one.png", "../../set/one.png"),
    "all of it": ("Süß 1.jpg", "D:/x/" + unicodedata.normalize("NFD", "SÜß%201.PNG")),
}


def files(root, name):
    """The image of a name, and five others."""
    for number, other in enumerate((name, "q1.png", "q2.png", "q3.png", "q4.png", "q5.png")):
        save_picture(root / "images" / f"{number}.png", number)
        (root / "images" / f"{number}.png").rename(root / "images" / other)
    return root


def rows(name):
    names = (name, "q1.png", "q2.png", "q3.png", "q4.png", "q5.png")
    return [(name, "cat", box_of(number)) for number, name in enumerate(names)]


@pytest.mark.parametrize("form", NAMED)
@pytest.mark.parametrize("case", SAME)
def test_a_name_of_another_form_is_matched(tmp_path, case, form):
    there, written = SAME[case]
    if form == "Label Studio" and ".." in written:
        pytest.skip("addresses of a server have no folders above")
    root = files(tmp_path / "set", there)
    FORMATS[form](root, Boxes(rows=rows(written)))
    converted = convert_folder(root, tmp_path / "out")
    assert converted.boxes == 6
    assert len(examples(converted)) + len(examples(converted, "validation")) == 6


def test_two_files_that_fit_equally_well_are_a_bad_record(tmp_path):
    root = files(tmp_path / "set", "One.png")
    picture(root / "images" / "ONE.PNG", 9)
    FORMATS["COCO"](root, Boxes(rows=rows("one.png")))
    converted = convert_folder(root, tmp_path / "out")
    assert converted.boxes == 5
    assert any("image name fits several files" in problem for problem in converted.problems)


@pytest.mark.parametrize("form", NAMED)
def test_a_name_that_is_not_there_is_said_with_the_nearest(tmp_path, form):
    root = files(tmp_path / "set", "IMG_2041.png")
    FORMATS[form](root, Boxes(rows=rows("IMG_2014.png")))
    said = [p for p in convert_folder(root, tmp_path / "out").problems if "missing" in p]
    assert len(said) == 1
    assert "there is images/IMG_2041.png" in said[0]


def test_one_set_at_a_time_matches_names_too(tmp_path):
    root = files(tmp_path / "set", "One.png")
    FORMATS["COCO"](root, Boxes(rows=rows("/data/set/one.jpg")))
    items, _ = read_coco(root / "a.json", root / "images", ConversionLog())
    assert [item.path.name for item in items] == ["One.png", *(f"q{n}.png" for n in range(1, 6))]
    with refused("a.json: image 1 (z.jpg)"):
        FORMATS["COCO"](root, Boxes(rows=rows("z.jpg")[:1]))
        read_coco(root / "a.json", root / "images", ConversionLog())


def test_the_suffix_of_the_annotation_wins(tmp_path):
    root = tmp_path / "set"
    for number in range(6):
        picture(root / f"p{number}.png", number)
        picture(root / f"p{number}.jpg", number + 10)
        suffix = ".png" if number % 2 else ".jpg"
        xml = voc_xml(("cat", (4, 6, 24, 36)), filename=f"p{number}{suffix}")
        (root / f"p{number}.xml").write_text(xml)
    converted = convert_folder(root, tmp_path / "out")
    read = examples(converted) | examples(converted, "validation")
    assert sorted(read) == ["p0.jpg", "p1.png", "p2.jpg", "p3.png", "p4.jpg", "p5.png"]
    assert any("6 x image without annotation" in problem for problem in converted.problems)


def test_yolo_labels_belong_to_one_of_two_images_and_the_other_is_named(tmp_path):
    root = tmp_path / "set"
    for number in range(6):
        picture(root / f"p{number}.png", number)
        picture(root / f"p{number}.jpg", number + 10)
        put(root, f"p{number}.txt", "0 .5 .5 .2 .2\n")
    converted = convert_folder(root, tmp_path / "out")
    assert converted.boxes == converted.train_images + converted.validation_images == 6
    said = "6 x image with the name of another image that has labels, image left out"
    assert any(problem.startswith(said) for problem in converted.problems)


def test_labels_find_the_image_beside_them_among_many_of_one_name(tmp_path):
    root = tmp_path / "set"
    for folder in range(60):
        for name in range(4):
            path = root / f"{folder}" / "images" / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            put(root, f"{folder}/labels/{name}.txt", "0 .5 .5 .2 .2\n")
    data = DataFolder(root)
    compared = []
    for file in data.with_suffix(".txt"):
        image = data.image_of_stem(file.stem, file)
        compared.append(image == file.parents[1] / "images" / f"{file.stem}.png")
    assert all(compared)
