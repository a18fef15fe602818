"""Files that look like annotations and are of no format: named with the reason, never dropped."""

import codecs
import json
import zipfile

import pytest

from stillbox.errors import UserError
from stillbox.records.folder import convert_folder
from stillbox.records.folder_content import FolderOptions
from tests.helpers import refused
from tests.records.builders import put
from tests.records.situations import FORMATS, Boxes, pictures
from tests.records.test_folder import picture, voc_folder

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
HTML = "\n<!DOCTYPE html><html><body>Not Found</body></html>"
# Name, content and the reason.
UNREAD = {
    "pointer": ("more.json", LFS, "Git LFS pointer: run `git lfs pull`"),
    "pointer to a list": ("list.txt", LFS, "Git LFS pointer"),
    "page": ("more.csv", HTML, "an HTML page"),
    "page as XML": ("more.xml", HTML, "an HTML page"),
    "nothing": ("more.json", "", "the file is empty"),
    "blanks": ("more.xml", "\n \n", "the file is empty"),
    "cut JSON": ("more.json", '{"images": [\n{"id": 1', r"more\.json:2: this is not JSON"),
    "cut XML": ("more.xml", "<list>\n<object>\n</data>", r"more\.xml:3: this is not XML"),
    "columns": ("more.csv", "picture,box,kind\na,1 2 3 4,cat\n", "picture, box, kind"),
    "JSON of something": ("more.json", '{"theme": "dark"}', "no format that is read"),
    "XML of something": ("more.xml", "<project/>", "its root is <project>"),
    "numbers": ("more.txt", "a.png 1,2,3,4,0\n", "it begins with 'a.png"),
}


def put_bytes(folder, name, content):
    put(folder, name, "")
    (folder / name).write_bytes(content)


@pytest.mark.parametrize("case", UNREAD)
def test_a_file_beside_annotations_is_reported(tmp_path, case):
    name, content, reason = UNREAD[case]
    folder = voc_folder(tmp_path / "photos")
    put(folder, name, content)
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.boxes == 4
    (said,) = [problem for problem in converted.problems if name in problem]
    plain = reason.replace("\\", "").partition(": ")[0]
    assert plain.removeprefix(name) in said


@pytest.mark.parametrize("case", UNREAD)
def test_a_file_alone_is_the_reason(tmp_path, case):
    name, content, reason = UNREAD[case]
    folder = voc_folder(tmp_path / "photos")
    for file in folder.glob("*.xml"):
        file.unlink()
    put(folder, name, content)
    with pytest.raises(UserError, match=reason):
        convert_folder(folder, tmp_path / "out")


@pytest.mark.parametrize("name", ["val.json", "valid/labels.csv", "test/all.xml", "data.yaml"])
def test_a_lost_split_stops(tmp_path, name):
    folder = yolo_folder(tmp_path / "set")
    (folder / "data.yaml").unlink()
    put(folder, name, LFS + "\t:\n")
    with pytest.raises(UserError, match="lost with it"):
        convert_folder(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_of_a_split_that_is_there_stops_nothing(tmp_path):
    for number, part in enumerate(("train", "valid")):
        names = [f"{part}{n}" for n in range(3)]
        voc_folder(tmp_path / "set" / part, names)
        for n, name in enumerate(names):
            picture(tmp_path / "set" / part / f"{name}.png", 10 * number + n)
    put(tmp_path / "set", "valid/more.json", LFS)
    put(tmp_path / "set", "train/conf.yaml", "a:\n\tb\n")
    put(tmp_path / "set", "test/classes.csv", "name,id\ncat,1\n")
    with zipfile.ZipFile(tmp_path / "set" / "train.zip", "w") as archive:
        archive.writestr("a.txt", "")
    converted = convert_folder(tmp_path / "set", tmp_path / "out")
    assert (converted.train_images, converted.validation_images) == (3, 3)
    said = converted.report.read_text()
    assert all(name in said for name in ("more.json", "conf.yaml", "classes.csv", "train.zip"))


def test_an_archive_of_a_split_that_is_not_there_stops(tmp_path):
    voc_folder(tmp_path / "set" / "train")
    with zipfile.ZipFile(tmp_path / "set" / "val.zip", "w") as archive:
        archive.writestr("a.txt", "")
    with refused("set/val.zip"):
        convert_folder(tmp_path / "set", tmp_path / "out")


def test_the_policy_fail_stops_at_a_file_that_cannot_be_read(tmp_path):
    folder = voc_folder(tmp_path / "photos")
    (folder / "b.xml").write_text("<annotation><object>")
    said = convert_folder(folder, tmp_path / "out").problems
    assert any("annotation file is no XML" in p and "b.xml: no element" in p for p in said)
    assert not any("image without annotation" in problem for problem in said)
    with pytest.raises(UserError, match=r"b\.xml"):
        convert_folder(folder, tmp_path / "stopped", FolderOptions(bad_records="fail"))


def test_an_archive_is_named(tmp_path):
    folder = voc_folder(tmp_path / "photos")
    with zipfile.ZipFile(folder / "labels.zip", "w") as archive:
        archive.writestr("a.txt", "0 .5 .5 .1 .1\n")
    converted = convert_folder(folder, tmp_path / "out")
    assert any("labels.zip: an archive: unpack it" in problem for problem in converted.problems)
    with refused("photos/labels.zip"):
        convert_folder(folder / "labels.zip", tmp_path / "other")


def test_texts_of_people_are_no_annotations(tmp_path):
    folder = voc_folder(tmp_path / "photos")
    for name in ("README.txt", "notes.txt", "LICENSE", "requirements.txt", "README.md"):
        put(folder, name, "Pictures of cats, 2 of 4.\n")
    assert not convert_folder(folder, tmp_path / "out").problems


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_text_of_other_editors_is_read(tmp_path, encoding):
    folder = voc_folder(tmp_path / "photos")
    for file in folder.glob("*.xml"):
        file.unlink()
    rows = "".join(f"{name}.png;cat;6;4;36;24\r\n" for name in "abcd")
    text = f"filename;class;xmin;ymin;xmax;ymax\r\n{rows}"
    put_bytes(folder, "labels.csv", text.encode(encoding))
    assert convert_folder(folder, tmp_path / "out").boxes == 4


def test_xml_of_an_encoding_that_expat_lacks_is_read(tmp_path):
    folder = voc_folder(tmp_path / "photos")
    text = (folder / "a.xml").read_text().replace("cat", "猫")
    head = '<?xml version="1.0" encoding="gb2312"?>'
    put_bytes(folder, "a.xml", f"\n{head}{text}".encode("gb2312"))
    put_bytes(folder, "b.xml", codecs.BOM_UTF8 + (folder / "b.xml").read_bytes())
    converted = convert_folder(folder, tmp_path / "out")
    assert (converted.classes, converted.boxes) == (("cat", "猫"), 4)


FOREIGN = {
    "Labelbox": [{"ID": "1", "Label": {}, "External ID": "a.png"}],
    "Supervisely": {"description": "", "size": {}, "objects": []},
    "VoTT project": {"asset": {}, "regions": []},
    "BDD100K": [{"name": "a.png", "labels": []}],
    "Datumaro": {"info": {}, "categories": {}, "items": []},
    "Darwin": {"version": "2.0", "item": {}, "annotations": []},
    "Scale AI": [{"task_id": "1", "response": {}}],
    "Dataloop": {"filename": "/a.png", "annotations": [], "metadata": {}},
    "Cityscapes": {"imgHeight": 1, "imgWidth": 1, "objects": []},
    "detections of a model": [{"image_id": 1, "category_id": 1, "bbox": [], "score": 0.5}],
    "image info without": {"images": [{"id": 1, "file_name": "a"}], "categories": []},
    "VIA annotations": {"a.png9": {"filename": "a.png", "regions": []}},
    "videos": {"videos": [{"id": 1}], "annotations": [], "categories": []},
}
TEXTS = {
    "DOTA": "a.txt:1 2 3 4 5 6 7 8 plane 0\n",
    "OIDv4": "a.txt:Polar bear 1.0 2.0 30.5 40.0\n",
    "MOT": "gt.txt:1,1,912,484,97,109,0,7,1\n",
    "WIDER": "list.txt:0--Parade/a.jpg\n1\n449 330 122 149 0 0 0 0 0 0\n",
    "version 1": "a.txt:# PASCAL Annotation Version 1.00\n",
    "Ground Truth": 'out.manifest:{"source-ref": "s3://a"}\n',
    "CrowdHuman": 'a.odgt:{"ID": "a", "gtboxes": []}\n',
    "MATLAB": "a.mat:MATLAB 5.0\n",
    "VIA annotations as CSV": "a.csv:filename,region_count,region_shape_attributes\n",
}


@pytest.mark.parametrize("title", [*FOREIGN, *TEXTS])
def test_a_foreign_format_is_named_with_the_way_out(tmp_path, title):
    folder = voc_folder(tmp_path / "photos")
    for file in folder.glob("*.xml"):
        file.unlink()
    if title in FOREIGN:
        put(folder, "labels.json", json.dumps(FOREIGN[title]))
    else:
        name, _, content = TEXTS[title].partition(":")
        put(folder, name, content)
    with refused("", title) as caught:
        convert_folder(folder, tmp_path / "out")
    assert caught.value.fix


def yolo_folder(root):
    pictures(root)
    FORMATS["YOLO"](root, Boxes())
    return root


def test_a_pointer_in_place_of_any_file_is_named(tmp_path):
    folder = yolo_folder(tmp_path / "set")
    put(folder, "labels/p0.txt", LFS)
    put(folder, "images/p1.png", LFS)
    said = convert_folder(folder, tmp_path / "out").problems
    for name in ("p0.txt", "p1.txt"):
        assert any(name in problem and "git lfs pull" in problem for problem in said)
    (folder / "data.yaml").unlink()
    put(folder, "classes.txt", LFS)
    with refused("set/classes.txt", "LFS"):
        convert_folder(folder, tmp_path / "other")


def test_images_of_other_kinds_are_named(tmp_path):
    folder = yolo_folder(tmp_path / "set")
    (folder / "images/p0.png").rename(folder / "images/p0.CR2")
    said = convert_folder(folder, tmp_path / "out").problems
    assert any("images/p0.CR2" in p and "save images as JPEG" in p for p in said)
    for image in folder.rglob("*.png"):
        image.rename(image.with_suffix(".nef"))
    with refused("set: data.yaml", "JPEG"):
        convert_folder(folder, tmp_path / "other")
